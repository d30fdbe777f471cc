/*
 * Load a broker with ready requests, over any number of connections.
 *
 * In: requests as files of ready bytes (bench/load.py makes them). Out: one line of numbers. It reads of an
 * answer only the fields that it needs, because it shares the machine with the broker.
 *
 * load produce PORT SECONDS CONNECTIONS PRODUCE_FILE IN_FLIGHT
 *     each connection keeps IN_FLIGHT requests unanswered; prints "answers seconds"
 * load tail PORT SECONDS CONSUMERS PRODUCE_FILE FETCH_FILE OFFSET_AT
 *     one connection produces, the others fetch at the tail; the producer sends its next request once all consumers have
 *     the records of the last one; prints "rounds seconds bytes-delivered"
 * load paced RATE SECONDS TIMES_FILE { PORT PRODUCE_FILE } ...
 *     RATE requests a second, over one connection to each port in turn; writes to TIMES_FILE, for each request, the
 *     microseconds from the time when it was due until its answer, one a line; prints "answers seconds"
 *
 * Produce is version 7, Fetch version 11, each of one partition. Exit status 1, with a line on stderr, if an answer is
 * missing or has an error.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"

#define EVENTS_MAX 256

struct connection {
    int fd;
    int64_t offset; /* the next to fetch; -1 for a producer */
    size_t have;
    size_t room;
    unsigned char *answer;
};

/* Error codes of an answer by which a broker says that it does not lead the partition yet: a new topic's first answers. */
#define IS_NOT_READY(error) ((error) == 3 || (error) == 6)

static void fail(const char *why) {
    fprintf(stderr, "load: %s\n", why);
    exit(1);
}

static void fail_by(const char *why, size_t error) {
    fprintf(stderr, "load: error code %zu in the answer to %s\n", error, why);
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static unsigned char *contents(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail("no such request");
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*size);
    if (!bytes || fread(bytes, 1, *size, file) != *size) fail("a request that cannot be read");
    fclose(file);
    return bytes;
}

static void open_connection(struct connection *one, int poll, int port, int64_t offset) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    one->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (one->fd < 0 || connect(one->fd, (struct sockaddr *)&to, sizeof to)) fail("cannot connect");
    setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    one->offset = offset;
    one->have = 0;
    one->room = 64 << 10;
    one->answer = malloc(one->room);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (!one->answer || epoll_ctl(poll, EPOLL_CTL_ADD, one->fd, &event)) fail("cannot poll");
}

/* Blocks while the broker does not read: this program has no other work meanwhile. */
static void send_all(int fd, const unsigned char *bytes, size_t size) {
    while (size > 0) {
        ssize_t sent = write(fd, bytes, size);
        if (sent <= 0) fail("the connection was closed");
        bytes += sent;
        size -= (size_t)sent;
    }
}

static void receive(struct connection *one) {
    ssize_t got = read(one->fd, one->answer + one->have, one->room - one->have);
    if (got <= 0) fail("the connection was closed");
    one->have += (size_t)got;
}

/* Return the size of the first whole answer, or 0 while a part of it is missing. */
static size_t whole(struct connection *one) {
    if (one->have < 4) return 0;
    size_t size = 4 + get32(one->answer);
    if (size > one->room) {
        one->room = size;
        one->answer = realloc(one->answer, size);
        if (!one->answer) fail("no memory");
    }
    return one->have < size ? 0 : size;
}

static void forget(struct connection *one, size_t size) {
    one->have -= size;
    memmove(one->answer, one->answer + size, one->have);
}

/* size, correlation, topics, name, partitions, index, error, base offset */
static int64_t produced_at(const unsigned char *answer) {
    const unsigned char *at = answer + 4 + 4 + 4;
    at += 2 + get16(at) + 4 + 4;
    if (get16(at)) fail_by("Produce", get16(at));
    return get64(at + 2);
}

/* Return the size of the answer's records; move the connection's offset past them. */
static size_t fetched(struct connection *one) {
    /* size, correlation, throttle, error, session, topics, name, partitions, index, error */
    const unsigned char *at = one->answer + 4 + 4 + 4;
    if (get16(at)) fail_by("Fetch", get16(at));
    at += 2 + 4 + 4;
    at += 2 + get16(at) + 4 + 4;
    if (IS_NOT_READY(get16(at))) return 0; /* the caller asks again */
    if (get16(at)) fail_by("Fetch, for the partition", get16(at));
    at += 2 + 8 + 8 + 8; /* high watermark, last stable offset, log start */
    uint32_t aborted = get32(at);
    at += 4 + (aborted == UINT32_MAX ? 0 : 16 * (size_t)aborted) + 4; /* preferred replica */
    uint32_t size = get32(at);
    at += 4;
    const unsigned char *end = at + (size == UINT32_MAX ? 0 : size);
    size_t taken = (size_t)(end - at);
    while (at + 61 <= end) {
        one->offset = get64(at) + get32(at + 23) + 1;
        at += 12 + get32(at + 8);
    }
    return taken;
}

static void produce(int poll, int port, double seconds, int count, char **files) {
    size_t size;
    unsigned char *request = contents(files[0], &size);
    struct connection *all = calloc((size_t)count, sizeof *all);
    for (int i = 0; i < count; i++) open_connection(&all[i], poll, port, -1);
    struct epoll_event events[EVENTS_MAX];
    long answers = 0;
    double begun = now();
    for (int i = 0; i < count; i++)
        for (int sent = atoi(files[1]); sent > 0; sent--) send_all(all[i].fd, request, size);
    while (now() - begun < seconds) {
        int ready = epoll_wait(poll, events, EVENTS_MAX, 1000);
        for (int i = 0; i < ready; i++) {
            struct connection *one = events[i].data.ptr;
            receive(one);
            for (size_t answer = whole(one); answer > 0; answer = whole(one)) {
                produced_at(one->answer);
                forget(one, answer);
                answers++;
                send_all(one->fd, request, size);
            }
        }
    }
    printf("%ld %f\n", answers, now() - begun);
}

struct tail {
    unsigned char *fetch;
    size_t fetch_size;
    size_t offset_at;
};

static void ask(const struct tail *tail, struct connection *one) {
    uint64_t offset = htobe64((uint64_t)one->offset);
    memcpy(tail->fetch + tail->offset_at, &offset, 8);
    send_all(one->fd, tail->fetch, tail->fetch_size);
}

static void tail(int poll, int port, double seconds, int count, char **files) {
    struct tail tail;
    size_t size;
    unsigned char *request = contents(files[0], &size);
    tail.fetch = contents(files[1], &tail.fetch_size);
    tail.offset_at = (size_t)atol(files[2]);
    struct connection *all = calloc((size_t)count + 1, sizeof *all);
    open_connection(&all[count], poll, port, -1);
    for (int i = 0; i < count; i++) {
        open_connection(&all[i], poll, port, 0);
        ask(&tail, &all[i]);
    }
    struct epoll_event events[EVENTS_MAX];
    long rounds = 0;
    double delivered = 0;
    double begun = now();
    while (now() - begun < seconds) {
        int64_t base = -1;
        int behind = count;
        int64_t from = all[0].offset;
        send_all(all[count].fd, request, size);
        while ((base < 0 || behind > 0) && now() - begun < 2 * seconds + 10) {
            int ready = epoll_wait(poll, events, EVENTS_MAX, 1000);
            for (int i = 0; i < ready; i++) {
                struct connection *one = events[i].data.ptr;
                receive(one);
                size_t answer = whole(one);
                if (answer == 0) continue;
                if (one->offset < 0) {
                    base = produced_at(one->answer);
                    forget(one, answer);
                    continue;
                }
                size_t taken = fetched(one);
                forget(one, answer);
                delivered += (double)taken;
                if (taken > 0) behind--;
                ask(&tail, one);
            }
        }
        if (base != from) fail("the records are not where they belong");
        rounds++;
    }
    printf("%ld %f %.0f\n", rounds, now() - begun, delivered);
}

/* A request that is due while this program still waits counts from its due time: a slow broker cannot slow the load. */
struct paced {
    struct connection connection;
    unsigned char *request;
    size_t size;
    double *due; /* of each request, in order */
    long sent, answered;
};

/* Its connection comes first: epoll's pointer to that is one to the whole. */
static int take_answers(struct paced *one, FILE *times) {
    int taken = 0;
    receive(&one->connection);
    for (size_t size = whole(&one->connection); size > 0; size = whole(&one->connection)) {
        produced_at(one->connection.answer);
        forget(&one->connection, size);
        fprintf(times, "%.0f\n", (now() - one->due[one->answered++]) * 1e6);
        taken++;
    }
    return taken;
}

static void paced(int poll, char **words, int count, char **pairs) {
    double rate = atof(words[0]), seconds = atof(words[1]);
    long total = (long)(rate * seconds), sent = 0, answered = 0;
    FILE *times = fopen(words[2], "w");
    struct paced *all = calloc((size_t)count, sizeof *all);
    if (!times || !all) fail("cannot write the times");
    for (int i = 0; i < count; i++) {
        open_connection(&all[i].connection, poll, atoi(pairs[2 * i]), -1);
        all[i].request = contents(pairs[2 * i + 1], &all[i].size);
        all[i].due = calloc((size_t)(total / count) + 1, sizeof(double));
        if (!all[i].due) fail("no memory");
    }
    struct epoll_event events[EVENTS_MAX];
    double begun = now();
    while (answered < total) {
        double left = 1;
        while (sent < total && (left = begun + (double)sent / rate - now()) <= 0) {
            struct paced *one = &all[sent % count];
            one->due[one->sent++] = begun + (double)sent / rate;
            send_all(one->connection.fd, one->request, one->size);
            sent++;
        }
        struct timespec wait = {.tv_sec = left >= 1, .tv_nsec = left >= 1 ? 0 : (long)(left * 1e9)};
        int ready = epoll_pwait2(poll, events, EVENTS_MAX, &wait, NULL);
        for (int i = 0; i < ready; i++)
            answered += take_answers((struct paced *)events[i].data.ptr, times);
        if (now() - begun > seconds + 30) fail("answers are missing");
    }
    fclose(times);
    printf("%ld %f\n", answered, now() - begun);
}

int main(int argc, char **argv) {
    int poll = epoll_create1(0);
    if (poll < 0) fail("cannot poll");
    if (argc == 7 && !strcmp(argv[1], "produce"))
        produce(poll, atoi(argv[2]), atof(argv[3]), atoi(argv[4]), argv + 5);
    else if (argc == 8 && !strcmp(argv[1], "tail"))
        tail(poll, atoi(argv[2]), atof(argv[3]), atoi(argv[4]), argv + 5);
    else if (argc >= 7 && argc % 2 && !strcmp(argv[1], "paced"))
        paced(poll, argv + 2, (argc - 5) / 2, argv + 5);
    else
        fail("usage: see load.c");
    return 0;
}
