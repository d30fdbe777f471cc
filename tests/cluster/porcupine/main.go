// Whether histories of operations are linearizable, by Porcupine: a second opinion on tests/cluster/linear.py.
//
// In: JSON on the standard input, a list of objects, each with its rule, its initial value and its operations. Out: a
// line for each object, its name and Porcupine's verdict. Times are microseconds; an operation without an answer has
// the time -1. Written operations may take effect a second time before their answer, because clients repeat requests.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const secondsMax = 60

type operation struct {
	Kind     string
	Value    string
	Called   int64
	Returned int64
}

type object struct {
	Name       string
	Rule       string
	Initial    string
	Operations []operation
}

type input struct {
	kind       string
	value      string
	isOptional bool
}

// applied returns the states after an operation that takes effect in a state: none where its answer contradicts.
func applied(rule string, state string, one input) []interface{} {
	if one.kind == "read" {
		if state == one.value {
			return []interface{}{state}
		}
		return nil
	}
	if rule == "register" {
		return []interface{}{one.value}
	}
	switch {
	case one.kind == "create" && state == "False":
		return []interface{}{"True"}
	case one.kind == "delete" && state == "True":
		return []interface{}{"False"}
	}
	return nil
}

func model(of object) porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{of.Initial} },
		Step: func(state interface{}, given interface{}, _ interface{}) []interface{} {
			one := given.(input)
			after := applied(of.Rule, state.(string), one)
			if one.isOptional {
				after = append(after, state)
			}
			return after
		},
	}
	return nondeterministic.ToModel()
}

func operations(of object) []porcupine.Operation {
	var found []porcupine.Operation
	add := func(one operation, isOptional bool, returned int64) {
		found = append(found, porcupine.Operation{
			ClientId: len(found),
			Input:    input{one.Kind, one.Value, isOptional},
			Call:     one.Called,
			Output:   nil,
			Return:   returned,
		})
	}
	for _, one := range of.Operations {
		if one.Returned < 0 {
			add(one, true, math.MaxInt64)
			continue
		}
		add(one, false, one.Returned)
		if one.Kind != "read" {
			add(one, true, one.Returned)
		}
	}
	return found
}

func main() {
	var objects []object
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		fmt.Fprintln(os.Stderr, "the input is not a list of histories:", err)
		os.Exit(2)
	}
	for _, one := range objects {
		verdict := porcupine.CheckOperationsTimeout(model(one), operations(one), secondsMax*time.Second)
		fmt.Printf("%s\t%s\n", one.Name, verdict)
	}
}
