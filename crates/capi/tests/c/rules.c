/* Every rule of toklat.h that one program can check, against a daemon with a switch vale0. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <toklat.h>

#define CHECK(is_so)                                                                                \
    do {                                                                                            \
        if (!(is_so)) {                                                                             \
            fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #is_so);                       \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)
#define REFUSED(call, error) CHECK((call) == -(error))

/* The library asserts the same. */
_Static_assert(sizeof(struct toklat_options) == 48 && offsetof(struct toklat_options, message) == 24, "options");
_Static_assert(sizeof(struct toklat_slot) == 24 && offsetof(struct toklat_slot, length) == 12, "slot");
_Static_assert(sizeof(struct toklat_frame) == 16 && offsetof(struct toklat_frame, length) == 8, "frame");
_Static_assert(sizeof(struct toklat_offload) == 8 && offsetof(struct toklat_offload, gso_size) == 2, "offload");
_Static_assert(sizeof(struct toklat_stats) == 64 && offsetof(struct toklat_stats, reopens) == 56, "stats");

enum { A_WHILE = 30000 };

static unsigned char frame[64 * 2048 + 1] = { 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };

static struct toklat_port *open_port(const char *name, const struct toklat_options *options)
{
    struct toklat_port *port;
    CHECK(toklat_open(name, options, &port) == 0 && port != NULL);
    CHECK(strcmp(toklat_name(port), name) == 0);
    return port;
}

static void null_is_refused(void)
{
    struct toklat_port *none = NULL, *port = open_port("vale0:null", NULL);

    REFUSED(toklat_open(NULL, NULL, &none), EINVAL);
    REFUSED(toklat_open("vale0:x", NULL, NULL), EINVAL);
    toklat_close(NULL);
    CHECK(toklat_name(NULL) == NULL && toklat_message(NULL) != NULL);
    REFUSED(toklat_send_queues(NULL), EINVAL);
    REFUSED(toklat_receive_queues(NULL), EINVAL);
    REFUSED(toklat_max_frame(NULL), EINVAL);
    REFUSED(toklat_reserve(NULL, 0, NULL, 1), EINVAL);
    REFUSED(toklat_reserve(port, 0, NULL, 1), EINVAL);
    REFUSED(toklat_commit(NULL, 0, NULL, 1), EINVAL);
    REFUSED(toklat_commit(port, 0, NULL, 0), EINVAL);
    REFUSED(toklat_push(NULL, 0, frame, 60), EINVAL);
    REFUSED(toklat_push(port, 0, NULL, 60), EINVAL);
    REFUSED(toklat_receive(NULL, 0, NULL, 1), EINVAL);
    REFUSED(toklat_receive(port, 0, NULL, 1), EINVAL);
    REFUSED(toklat_offloads(NULL), EINVAL);
    REFUSED(toklat_commit_offload(NULL, 0, NULL, 1, NULL), EINVAL);
    REFUSED(toklat_push_offload(NULL, 0, frame, 60, NULL), EINVAL);
    REFUSED(toklat_receive_offload(port, 0, NULL, NULL, 1), EINVAL);
    REFUSED(toklat_flush(NULL), EINVAL);
    REFUSED(toklat_wait(NULL, TOKLAT_READ, 0), EINVAL);
    REFUSED(toklat_fd(NULL), EINVAL);
    REFUSED(toklat_arm(NULL, TOKLAT_READ), EINVAL);
    REFUSED(toklat_disarm(NULL), EINVAL);
    REFUSED(toklat_check(NULL), EINVAL);
    REFUSED(toklat_reset(NULL), EINVAL);
    REFUSED(toklat_reopen(NULL), EINVAL);
    REFUSED(toklat_stats(NULL, NULL), EINVAL);
    REFUSED(toklat_stats(port, NULL), EINVAL);
    toklat_close(port);
}

static void options_are_checked(void)
{
    struct { struct toklat_options now; uint64_t later; } newer = { TOKLAT_OPTIONS_INIT, 0 };
    struct toklat_options options = TOKLAT_OPTIONS_INIT;
    struct toklat_port *port = (void *)frame, *second;
    char message[24] = "";

    options.message = message;
    options.message_size = sizeof(message);
    REFUSED(toklat_open("nonsense", &options, &port), EINVAL);
    CHECK(port == NULL && strcmp(message, "`nonsense` is not a por") == 0);
    REFUSED(toklat_open("\xff:x", &options, &port), EINVAL);
    options.flags = 2;
    REFUSED(toklat_open("vale0:x", &options, &port), EINVAL);
    options.flags = TOKLAT_EXISTING;
    REFUSED(toklat_open("missing:x", &options, &port), ENOENT);
    options.slots = 1u << 30;
    REFUSED(toklat_open("vale0:x", &options, &port), EINVAL);
    options.slots = 0;
    options.directory = "/nonexistent";
    REFUSED(toklat_open("vale0:x", &options, &port), ECONNREFUSED);
    options.size = 0;
    REFUSED(toklat_open("vale0:x", &options, &port), EINVAL);
    newer.now.size = sizeof(newer);
    toklat_close(open_port("vale0:x", &newer.now));
    newer.later = 1;
    REFUSED(toklat_open("vale0:x", &newer.now, &port), E2BIG);
    port = open_port("vale0:x", NULL);
    REFUSED(toklat_open("vale0:x", NULL, &second), EBUSY);
    toklat_close(port);
}

static void queues_are_as_asked_for(void)
{
    struct toklat_options options = TOKLAT_OPTIONS_INIT;
    struct toklat_frame frames[1];
    struct toklat_slot slots[64];
    struct toklat_port *port;

    options.send_queues = 2;
    options.receive_queues = TOKLAT_NO_QUEUES;
    options.slots = 16;
    port = open_port("vale0:queues", &options);
    CHECK(toklat_send_queues(port) == 2 && toklat_receive_queues(port) == 0);
    CHECK(toklat_max_frame(port) >= 1514);
    REFUSED(toklat_receive(port, 0, frames, 1), EINVAL);
    REFUSED(toklat_reserve(port, 2, slots, 1), EINVAL);
    REFUSED(toklat_push(port, 2, frame, 60), EINVAL);
    /* A ring of 16 slots holds 15. */
    CHECK(toklat_reserve(port, 1, slots, 64) == 15);
    toklat_close(port);
}

/* What was reserved is committed as it was lent, or refused without a trace. */
static void slots_are_committed_as_lent(struct toklat_port *from, struct toklat_port *to)
{
    struct toklat_slot slots[4] = { { .length = 60 } }, moved;
    struct toklat_frame frames[8];
    int came = 0;

    REFUSED(toklat_commit(from, 0, slots, 1), EINVAL);
    CHECK(toklat_reserve(from, 0, slots, 4) == 4 && slots[0].capacity >= 1514);
    REFUSED(toklat_commit(from, 0, slots, 1), EINVAL); /* no length */
    for (int i = 0; i < 4; i++) {
        memcpy(slots[i].data, frame, 60);
        slots[i].length = 60 + i;
    }
    slots[1].length = slots[1].capacity + 1;
    REFUSED(toklat_commit(from, 0, slots, 2), EINVAL);
    slots[1].length = 61;
    slots[1].flags = TOKLAT_MORE;
    REFUSED(toklat_commit(from, 0, slots, 2), EINVAL); /* unfinished */
    slots[1].flags = 2;
    REFUSED(toklat_commit(from, 0, slots, 2), EINVAL);
    slots[1].flags = 0;
    moved = slots[0];
    moved.data = frame;
    REFUSED(toklat_commit(from, 0, &moved, 1), EINVAL);
    CHECK(strstr(toklat_message(from), "toklat_reserve") != NULL);
    CHECK(toklat_commit(from, 0, slots, 1) == 0 && toklat_commit(from, 0, slots + 1, 2) == 0);
    REFUSED(toklat_commit(from, 0, slots + 1, 2), EINVAL); /* one is left */
    CHECK(toklat_push(from, 0, frame, 100) == 0);
    REFUSED(toklat_commit(from, 0, slots + 3, 1), EINVAL); /* taken back */
    CHECK(toklat_flush(from) == 0);
    for (uint32_t lengths[] = { 60, 61, 62, 100 }; came < 4;) {
        CHECK(toklat_wait(to, TOKLAT_READ, A_WHILE) == TOKLAT_READ);
        int some = toklat_receive(to, 0, frames, 8);
        for (int i = 0; i < some; i++, came++) {
            CHECK(came < 4 && frames[i].length == lengths[came] && frames[i].slots == 1);
            CHECK(memcmp(frames[i].data, frame, 14) == 0);
        }
    }
    CHECK(toklat_receive(to, 0, frames, 8) == 0);
}

static void sizes_and_room_have_limits(struct toklat_port *port)
{
    int pushed = 0, error;

    REFUSED(toklat_push(port, 0, frame, 0), EINVAL);
    REFUSED(toklat_push(port, 0, frame, (size_t)toklat_max_frame(port) + 1), EMSGSIZE);
    while ((error = toklat_push(port, 0, frame, 60)) == 0)
        CHECK(++pushed <= 4096);
    CHECK(error == -EAGAIN && pushed > 0);
    CHECK(toklat_wait(port, TOKLAT_WRITE, A_WHILE) == TOKLAT_WRITE);
    CHECK(toklat_push(port, 0, frame, 60) == 0 && toklat_flush(port) == 0);
}

/* Frames of several slots cross a pipe as they are, and are joined. */
static void long_frames_are_joined(void)
{
    struct toklat_port *left = open_port("vale0:pipe{1", NULL), *right = open_port("vale0:pipe}1", NULL);
    struct toklat_stats stats = TOKLAT_STATS_INIT;
    struct toklat_frame frames[4];
    struct toklat_slot slots[2];

    for (size_t i = 0; i < sizeof(frame); i++)
        frame[i] = i < 14 ? frame[i] : (unsigned char)(i * 7);
    CHECK(toklat_max_frame(left) == 64 * 2048);
    REFUSED(toklat_push(left, 0, frame, sizeof(frame)), EMSGSIZE);
    CHECK(toklat_reserve(left, 0, slots, 2) == 2);
    memcpy(slots[0].data, frame, 100);
    memcpy(slots[1].data, frame + 100, 50);
    slots[0].length = 100, slots[0].flags = TOKLAT_MORE, slots[1].length = 50;
    CHECK(toklat_commit(left, 0, slots, 2) == 0 && toklat_push(left, 0, frame, 5000) == 0);
    CHECK(toklat_flush(left) == 0);
    CHECK(toklat_wait(right, TOKLAT_READ, A_WHILE) == TOKLAT_READ && toklat_receive(right, 0, frames, 4) == 2);
    CHECK(frames[0].length == 150 && frames[0].slots == 2 && memcmp(frames[0].data, frame, 150) == 0);
    CHECK(frames[1].length == 5000 && frames[1].slots > 1 && memcmp(frames[1].data, frame, 5000) == 0);
    /* A received frame may be pushed from where it lies. */
    CHECK(toklat_push(right, 0, frames[0].data, frames[0].length) == 0 && toklat_flush(right) == 0);
    CHECK(toklat_wait(left, TOKLAT_READ, A_WHILE) == TOKLAT_READ && toklat_receive(left, 0, frames, 4) == 1);
    CHECK(frames[0].length == 150 && frames[0].slots == 1 && memcmp(frames[0].data, frame, 150) == 0);
    CHECK(toklat_stats(right, &stats) == 0 && stats.joined_frames == 2 && stats.received_bytes == 5150);
    CHECK(stats.sent_frames == 1 && stats.sent_bytes == 150 && stats.fault == 0);
    stats.size = 8;
    REFUSED(toklat_stats(right, &stats), EINVAL);
    CHECK(toklat_reset(left) == 0);
    REFUSED(toklat_reopen(left), EOPNOTSUPP);
    toklat_close(left);
    toklat_close(right);
}

static void waiting(struct toklat_port *from, struct toklat_port *to)
{
    struct pollfd descriptor = { .fd = toklat_fd(to), .events = POLLIN };
    struct toklat_frame frames[1];

    REFUSED(toklat_wait(to, 0, 0), EINVAL);
    REFUSED(toklat_wait(to, 4, 0), EINVAL);
    REFUSED(toklat_arm(to, 256), EINVAL);
    CHECK(toklat_wait(to, TOKLAT_READ, 0) == 0);
    CHECK(toklat_wait(to, TOKLAT_READ | TOKLAT_WRITE, 0) == TOKLAT_WRITE);
    CHECK(toklat_arm(to, TOKLAT_READ) == 0);
    CHECK(toklat_push(from, 0, frame, 60) == 0 && toklat_flush(from) == 0);
    CHECK(poll(&descriptor, 1, A_WHILE) == 1 && toklat_disarm(to) == 0);
    CHECK(toklat_receive(to, 0, frames, 1) == 1 && toklat_flush(to) == 0 && toklat_check(to) == 0);
}

/* A TCP packet from station 3 to station 2, whose checksum (and segmentation) is left to others. */
static void packet(unsigned char *at, unsigned int payload)
{
    static const unsigned char head[54] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 8, 0, 0x45, [22] = 64, [23] = 6,
        [26] = 10, 0, 0, 1, 10, 0, 0, 2, [46] = 0x50, [47] = 0x10 };
    memset(at + 54, 0, payload);
    memcpy(at, head, 54);
    at[16] = (unsigned char)((payload + 40) >> 8);
    at[17] = (unsigned char)(payload + 40);
}

/* Requests reach a port that was opened for them; one that was not cannot make them, and gets finished frames. */
static void requests_travel(void)
{
    struct toklat_options options = TOKLAT_OPTIONS_INIT;
    struct toklat_offload sum = { TOKLAT_NEEDS_CHECKSUM, 0, 0, 34, 16 }, cut = { TOKLAT_NEEDS_CHECKSUM, TOKLAT_GSO_TCP4, 1000, 34, 16 };
    struct toklat_offload asked[64];
    struct toklat_frame frames[64];
    struct toklat_slot slots[64];
    struct toklat_port *none, *from, *to, *plain = open_port("vale0:plain", NULL);
    static unsigned char bytes[54 + 20000];
    int lent, came = 0;

    options.offloads = TOKLAT_OFFLOAD_CHECKSUM | TOKLAT_OFFLOAD_TSO4;
    from = open_port("vale0:asks", &options);
    to = open_port("vale0:takes", &options);
    CHECK(toklat_offloads(to) == 3 && toklat_offloads(plain) == 0);
    options.offloads = 32;
    REFUSED(toklat_open("vale0:x", &options, &none), EINVAL);
    packet(bytes, 20000);
    REFUSED(toklat_push(from, 0, bytes, sizeof(bytes)), EMSGSIZE);
    cut.gso_type = TOKLAT_GSO_TCP6;
    REFUSED(toklat_push_offload(from, 0, bytes, sizeof(bytes), &cut), EOPNOTSUPP);
    cut.gso_type = TOKLAT_GSO_TCP4;
    CHECK(toklat_push_offload(from, 0, bytes, sizeof(bytes), &cut) == 0);
    packet(bytes, 100);
    lent = toklat_reserve(from, 0, slots, 2);
    CHECK(lent == 2);
    memcpy(slots[0].data, bytes, 154);
    memcpy(slots[1].data, bytes, 154);
    slots[0].length = slots[1].length = 154;
    REFUSED(toklat_commit_offload(from, 0, slots, 2, &sum), EINVAL); /* two frames */
    CHECK(toklat_commit_offload(from, 0, slots, 1, &sum) == 0 && toklat_flush(from) == 0);
    while (came < 2) {
        int more;
        CHECK(toklat_wait(to, TOKLAT_READ, A_WHILE) == TOKLAT_READ);
        more = toklat_receive_offload(to, 0, frames, asked, 64);
        CHECK(more > 0);
        if (came == 0) {
            CHECK(frames[0].length == 20054 && asked[0].gso_size == 1000 && asked[0].gso_type == TOKLAT_GSO_TCP4);
        }
        if (came + more == 2) {
            CHECK(frames[more - 1].length == 154 && asked[more - 1].flags == TOKLAT_NEEDS_CHECKSUM);
        }
        came += more;
    }
    toklat_close(plain);
    toklat_close(to);
    toklat_close(from);
}

int main(void)
{
    struct toklat_port *from, *to;

    CHECK(strcmp(toklat_version(), "0.1.0") == 0);
    CHECK(strcmp(toklat_strerror(-ENXIO), toklat_strerror(ENXIO)) == 0 && strstr(toklat_strerror(ENXIO), "reopen"));
    null_is_refused();
    options_are_checked();
    queues_are_as_asked_for();
    from = open_port("vale0:from", NULL);
    to = open_port("vale0:to", NULL);
    CHECK(strcmp(toklat_message(from), "") == 0);
    slots_are_committed_as_lent(from, to);
    waiting(from, to);
    sizes_and_room_have_limits(from);
    long_frames_are_joined();
    requests_travel();
    toklat_close(to);
    toklat_close(from);
    return 0;
}
