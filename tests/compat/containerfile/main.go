// A Containerfile as BuildKit, Docker's builder, reads it.
//
// In: a Containerfile on the standard input. Out: its stages with their instructions as JSON; or on the standard error
// what is wrong, warnings too, and exit code 1.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

type instruction struct {
	Kind   string
	Of     instructions.Command
	Mounts []*instructions.Mount
}

type stage struct {
	Name         string
	Base         string
	Instructions []instruction
}

func main() {
	stages, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(stages)
}

func read() (stages []stage, err error) {
	file, err := parser.Parse(os.Stdin)
	if err != nil {
		return nil, err
	}
	for _, warning := range file.Warnings {
		err = fmt.Errorf("line %d: %s", warning.Location.Start.Line, warning.Short)
	}
	warn := func(rule, _, _, text string, _ []parser.Range) { err = fmt.Errorf("%s: %s", rule, text) }
	found, _, problem := instructions.Parse(file.AST, linter.New(&linter.Config{Warn: warn}))
	if problem != nil {
		return nil, problem
	}
	for _, one := range found {
		made := stage{Name: one.Name, Base: one.BaseName}
		for _, command := range one.Commands {
			entry := instruction{Kind: command.Name(), Of: command}
			if run, is := command.(*instructions.RunCommand); is {
				if problem := run.Expand(func(word string) (string, error) { return word, nil }); problem != nil {
					return nil, problem
				}
				entry.Mounts = instructions.GetMounts(run)
			}
			made.Instructions = append(made.Instructions, entry)
		}
		stages = append(stages, made)
	}
	return stages, err
}
