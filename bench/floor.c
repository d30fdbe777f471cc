/*
 * The floor under a line of bench.broker: the system calls that any broker makes for it, and next to nothing else.
 *
 * In: the requests of bench/load.c and of librdkafka, for one topic of one partition. Out: answers that say yes.
 * Never here: a look at a record, a check of a CRC, a rule of a log, a refusal. CreateTopics and DeleteTopics empty the file.
 *
 * floor FILE
 *     listens at a free port of 127.0.0.1, prints it, and serves until a signal ends it
 *
 * A turn is one epoll_wait, one recv of each ready connection, one pwritev of all their batches, one send to each
 * connection. A fetch is a send of the answer's head and a sendfile. Sockets block, so no answer ever waits for EPOLLOUT.
 * A fetch at the end is not answered: no line of the bench waits for its records.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bytes.h"

#define EVENTS_MAX 256
#define WRITES_MAX 1024
#define CHUNK (64 << 10)

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, METADATA = 3, API_VERSIONS = 18, CREATE = 19, DELETE = 20 };

/* What ApiVersions says: API and highest version. Others are not served. */
static const int served[][2] = {
    {PRODUCE, 7}, {FETCH, 11}, {LIST_OFFSETS, 1}, {METADATA, 1}, {API_VERSIONS, 3}, {CREATE, 0}, {DELETE, 0}};
#define SERVED (int)(sizeof served / sizeof *served)

struct connection {
    int fd;
    size_t have, used, room; /* bytes received, of those answered, and the buffer's size */
    unsigned char *in;
    unsigned char out[CHUNK], *end;
};

struct batch {
    int64_t offset, place;
};

static int file, port;
static int64_t next_offset, file_end, written;
static struct batch *batches;
static size_t batch_count, batch_room;
static struct iovec writes[WRITES_MAX];
static int write_count;

static void fail(const char *why) {
    perror(why);
    exit(1);
}

static void put(struct connection *to, const void *bytes, size_t size) {
    if (to->end + size > to->out + sizeof to->out) fail("too many answers in a turn");
    memcpy(to->end, bytes, size);
    to->end += size;
}

static void put8(struct connection *to, int value) { put(to, &(unsigned char){(unsigned char)value}, 1); }
static void put16(struct connection *to, int value) { put(to, &(uint16_t){htobe16((uint16_t)value)}, 2); }
static void put32(struct connection *to, uint32_t value) { put(to, &(uint32_t){htobe32(value)}, 4); }
static void put64(struct connection *to, int64_t value) { put(to, &(uint64_t){htobe64((uint64_t)value)}, 8); }
/* The string at `name`, with its length before it. */
static void put_name(struct connection *to, const unsigned char *name) { put(to, name, 2 + (size_t)get16(name)); }

static void write_batches(void) {
    int64_t size = 0;
    for (int i = 0; i < write_count; i++) size += (int64_t)writes[i].iov_len;
    if (size && pwritev(file, writes, write_count, written) != size) fail("pwritev");
    written += size;
    write_count = 0;
}

static void empty(void) {
    write_batches();
    next_offset = file_end = written = 0;
    batch_count = 0;
    if (ftruncate(file, 0)) fail("ftruncate");
}

static int64_t append(unsigned char *batch, size_t size) {
    if (batch_count == batch_room) {
        batch_room = batch_room ? 2 * batch_room : 1 << 16;
        batches = realloc(batches, batch_room * sizeof *batches);
        if (!batches) fail("memory");
    }
    if (write_count == WRITES_MAX) write_batches();
    int64_t base = next_offset;
    uint64_t stamp = htobe64((uint64_t)base);
    memcpy(batch, &stamp, 8);
    batches[batch_count++] = (struct batch){base, file_end};
    writes[write_count++] = (struct iovec){batch, size};
    next_offset += get32(batch + 23) + 1; /* the last record's offset in the batch */
    file_end += (int64_t)size;
    return base;
}

/* If the client has left, its connection's next recv says so. */
static void send_answers(struct connection *to, int flags) {
    const unsigned char *at = to->out;
    ssize_t sent = 0;
    for (; at < to->end && sent >= 0; at += sent) sent = send(to->fd, at, (size_t)(to->end - at), flags | MSG_NOSIGNAL);
    to->end = to->out;
}

/* acks, timeout, topics, name, partitions, index, size, batch; before those a transactional id, which is null */
static void produce(struct connection *from, unsigned char *at) {
    unsigned char *name = at + 2 + 2 + 4 + 4, *partition = name + 2 + get16(name) + 4;
    int64_t base = append(partition + 8, get32(partition + 4));
    put32(from, 1);
    put_name(from, name);
    put32(from, 1);
    put32(from, 0);
    put16(from, 0);
    put64(from, base);
    put64(from, -1); /* log append time */
    put64(from, 0);  /* log start */
    put32(from, 0);  /* throttle */
}

/* Return whether it is answered. */
static int fetch(struct connection *from, const unsigned char *at, size_t size_at) {
    const unsigned char *name = at + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 4;
    const unsigned char *partition = name + 2 + get16(name) + 4;
    int64_t offset = get64(partition + 8), most = get32(partition + 24);
    if (get32(name - 4) == 0 || offset >= next_offset) return 0;
    write_batches();
    size_t low = 0, high = batch_count; /* the last batch that begins at or before the offset */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        *(batches[middle].offset <= offset ? &low : &high) = middle;
    }
    off_t place = batches[low].place;
    int64_t left = written - place < most ? written - place : most;
    put32(from, 0); /* throttle */
    put16(from, 0);
    put32(from, 0); /* session */
    put32(from, 1);
    put_name(from, name);
    put32(from, 1);
    put32(from, 0);
    put16(from, 0);
    put64(from, next_offset); /* high watermark */
    put64(from, next_offset); /* last stable offset */
    put64(from, 0);
    put32(from, UINT32_MAX); /* no aborted transactions */
    put32(from, UINT32_MAX); /* no preferred replica */
    put32(from, (uint32_t)left);
    uint32_t size = htobe32((uint32_t)((size_t)(from->end - from->out) - size_at - 4) + (uint32_t)left);
    memcpy(from->out + size_at, &size, 4);
    send_answers(from, MSG_MORE);
    while (left > 0) {
        ssize_t sent = sendfile(from->fd, file, &place, (size_t)left);
        if (sent <= 0) return 1;
        left -= sent;
    }
    return 1;
}

static void list_offsets(struct connection *from, const unsigned char *at) {
    const unsigned char *name = at + 4 + 4, *partition = name + 2 + get16(name) + 4;
    put32(from, 1);
    put_name(from, name);
    put32(from, 1);
    put32(from, 0);
    put16(from, 0);
    put64(from, -1);
    put64(from, get64(partition + 4) == -2 ? 0 : next_offset);
}

static void metadata(struct connection *from, const unsigned char *at) {
    int topics = get32(at) != 0 && get32(at) != UINT32_MAX;
    put32(from, 1);
    put32(from, 1); /* node 1 */
    put(from, "\0\011127.0.0.1", 11);
    put32(from, (uint32_t)port);
    put16(from, -1); /* no rack */
    put32(from, 1);  /* the controller */
    put32(from, (uint32_t)topics);
    if (!topics) return;
    put16(from, 0);
    put_name(from, at + 4);
    put8(from, 0); /* not internal */
    put32(from, 1);
    put16(from, 0);
    const uint32_t one[] = {0, 1, 1, 1, 1, 1}; /* partition 0, its leader, its replicas, those in sync */
    for (int i = 0; i < 6; i++) put32(from, one[i]);
}

static void api_versions(struct connection *from, int version) {
    put16(from, 0);
    version >= 3 ? put8(from, SERVED + 1) : put32(from, SERVED);
    for (int i = 0; i < SERVED; i++) {
        put16(from, served[i][0]);
        put16(from, 0);
        put16(from, served[i][1]);
        if (version >= 3) put8(from, 0);
    }
    if (version >= 1) put32(from, 0); /* throttle */
    if (version >= 3) put8(from, 0);
}

static void answer(struct connection *from, unsigned char *frame) {
    int api = get16(frame + 4), version = get16(frame + 6), client = (int16_t)get16(frame + 12);
    unsigned char *at = frame + 14 + (client > 0 ? client : 0);
    unsigned char *head = from->end;
    size_t size_at = (size_t)(head - from->out);
    put32(from, 0);
    put(from, frame + 8, 4);
    if (api == FETCH) {
        if (!fetch(from, at, size_at)) from->end = head;
        return;
    }
    if (api == PRODUCE) produce(from, at);
    if (api == LIST_OFFSETS) list_offsets(from, at);
    if (api == METADATA) metadata(from, at);
    if (api == API_VERSIONS) api_versions(from, version);
    if (api == CREATE || api == DELETE) {
        empty();
        put32(from, 1);
        put_name(from, at + 4);
        put16(from, 0);
    }
    uint32_t size = htobe32((uint32_t)(from->end - head) - 4);
    memcpy(head, &size, 4);
}

/* Return 0 if the client left. A frame that is larger than a chunk is read to its end alone, so no large rest is moved. */
static int receive(struct connection *from) {
    size_t frame = from->have >= 4 ? 4 + (size_t)get32(from->in) : 0;
    if (frame > from->room) {
        from->in = realloc(from->in, from->room = frame);
        if (!from->in) fail("memory");
    }
    ssize_t got = recv(from->fd, from->in + from->have, (frame > CHUNK ? frame : CHUNK) - from->have, 0);
    if (got <= 0) return 0;
    from->have += (size_t)got;
    while (from->have - from->used >= 4) {
        size_t size = 4 + (size_t)get32(from->in + from->used);
        if (from->have - from->used < size) break;
        answer(from, from->in + from->used);
        from->used += size;
    }
    return 1;
}

static void greet(int poll, int listener) {
    struct connection *one = calloc(1, sizeof *one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (!one || !(one->in = malloc(one->room = CHUNK))) fail("memory");
    one->end = one->out;
    one->fd = accept(listener, NULL, NULL);
    setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (one->fd < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, one->fd, &event)) fail("accept");
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int poll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);
    struct epoll_event events[EVENTS_MAX], event = {.events = EPOLLIN};
    file = argc == 2 ? open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600) : -1;
    if (file < 0) fail("usage: floor FILE");
    signal(SIGPIPE, SIG_IGN); /* of sendfile */
    if (bind(listener, (struct sockaddr *)&at, length) || listen(listener, 512)) fail("listen");
    if (getsockname(listener, (struct sockaddr *)&at, &length)) fail("listen");
    if (epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event)) fail("poll");
    printf("%d\n", port = ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(poll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *one = events[i].data.ptr;
            if (!one) {
                greet(poll, listener);
            } else if (!receive(one)) {
                write_batches(); /* they may lie in its buffer */
                close(one->fd);
                free(one->in);
                free(one);
                events[i].data.ptr = NULL;
            }
        }
        write_batches();
        for (int i = 0; i < ready; i++) {
            struct connection *one = events[i].data.ptr;
            if (!one) continue;
            send_answers(one, 0);
            one->have -= one->used;
            memmove(one->in, one->in + one->used, one->have);
            one->used = 0;
        }
    }
}
