/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * toklat.h - ports of toklat's switches, for programs in C.
 *
 *     struct toklat_port *port;
 *     struct toklat_frame frames[256];
 *
 *     if (toklat_open("vale0:p1", NULL, &port) < 0)
 *         return 1;
 *     while (toklat_wait(port, TOKLAT_READ, -1) >= 0) {
 *         int came = toklat_receive(port, 0, frames, 256);
 *         for (int i = 0; i < came; i++)
 *             printf("%u bytes\n", frames[i].length);
 *     }
 *     fprintf(stderr, "%s\n", toklat_message(port));
 *     toklat_close(port);
 *
 * Build: cc program.c $(pkg-config --cflags --libs toklat)
 *
 * Errors. Functions that return int return a negative errno for an error: compare with `< 0`. toklat_strerror tells what
 * a number means, toklat_message what happened to this port. The errno variable is not set. Every function that takes a
 * port returns -EINVAL for NULL. -EIO means that the library itself failed: the port only closes from then on.
 *
 * Threads. One thread at a time may use a port; it need not always be the same. Different ports may be used by different
 * threads at once. The library has no global state, starts no thread and installs no signal handler.
 *
 * fork. Only one of the two processes may go on using the port. The other may exit or call exec, which closes its
 * descriptors; it may not call toklat_close.
 *
 * Lent memory. Slots (toklat_reserve) and frames (toklat_receive) lie in memory that the program shares with the switch.
 * They are lent until the next toklat_flush, toklat_wait, toklat_reset, toklat_reopen or toklat_close of that port. At
 * the other end of a pipe may be a stranger who changes a received frame while you read it: copy what you check, and use
 * the copy.
 *
 * Failures of the switch. When the data process dies, the daemon starts another one and the port goes on by itself; frames
 * may be lost, and no call fails. When the daemon itself ends, or the port is removed, calls return -ENXIO:
 * toklat_reopen brings the port back.
 */
#ifndef TOKLAT_H
#define TOKLAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open port. Its contents are the library's. */
struct toklat_port;

/* Flags of toklat_options. */
#define TOKLAT_EXISTING 1u /* fail with -ENOENT if the switch does not exist, instead of having it made */

/* Instead of a number of queues: none. */
#define TOKLAT_NO_QUEUES UINT32_MAX

/* What to wait for, and what is there: bits. */
#define TOKLAT_READ 1u  /* received frames */
#define TOKLAT_WRITE 2u /* free slots to send with */

/* Offload requests: bits of toklat_options.offloads and toklat_offloads. */
#define TOKLAT_OFFLOAD_CHECKSUM 1u /* checksums; the others need it */
#define TOKLAT_OFFLOAD_TSO4 2u     /* segmentation of TCP over IPv4 */
#define TOKLAT_OFFLOAD_TSO6 4u     /* segmentation of TCP over IPv6 */
#define TOKLAT_OFFLOAD_ECN 8u      /* segmentation of such TCP with ECN */
#define TOKLAT_OFFLOAD_USO 16u     /* segmentation of UDP */

/* Flags of toklat_offload. */
#define TOKLAT_NEEDS_CHECKSUM 1u /* the checksum holds the sum of the pseudo header only */
#define TOKLAT_DATA_VALID 2u     /* received only: the checksum was looked at and is good */

/* Kinds of segmentation: toklat_offload.gso_type. */
#define TOKLAT_GSO_NONE 0u
#define TOKLAT_GSO_TCP4 1u
#define TOKLAT_GSO_TCP6 4u
#define TOKLAT_GSO_UDP 5u
#define TOKLAT_GSO_ECN 0x80u /* beside a kind of TCP */

/* Flags of toklat_slot. */
#define TOKLAT_MORE 1u /* the frame goes on in the next slot */

/* How to open a port. Zero in a field is its default. Begin with TOKLAT_OPTIONS_INIT, which sets `size`. */
struct toklat_options {
    uint32_t size;           /* sizeof(struct toklat_options) */
    uint32_t slots;          /* of every ring: 2 to 4,096; default 1,024 */
    uint32_t send_queues;    /* 1 to 16, default 1; TOKLAT_NO_QUEUES for a port that only receives */
    uint32_t receive_queues; /* 1 to 16, default 1; TOKLAT_NO_QUEUES for a port that only sends */
    uint32_t flags;          /* TOKLAT_EXISTING */
    uint32_t message_size;   /* bytes at `message` */
    char *message;           /* where toklat_open says what failed, cut to its size; default: nowhere */
    const char *directory;   /* the daemon's; default $TOKLAT_DIR, $XDG_RUNTIME_DIR/toklat, /run/toklat or ~/.toklat */
    uint32_t offloads;       /* requests that frames may carry, both ways: TOKLAT_OFFLOAD_...; default none */
    uint32_t unused;
};
#define TOKLAT_OPTIONS_INIT { .size = sizeof(struct toklat_options) }

/* A slot to be filled. */
struct toklat_slot {
    void *data;        /* where its bytes go */
    uint32_t capacity; /* bytes that it takes */
    uint32_t length;   /* bytes that you wrote: set it before toklat_commit */
    uint32_t flags;    /* TOKLAT_MORE */
    uint32_t unused;
};

/* A received frame. Its bytes are contiguous, however many slots it came in. */
struct toklat_frame {
    const void *data;
    uint32_t length; /* bytes */
    uint32_t slots;  /* that it came in; those of several are copied together by the library */
};

/* What the sender of a frame leaves to others to do, in virtio-net's meaning (virtio 1.2, 5.1.6). Zero asks for nothing. */
struct toklat_offload {
    uint8_t flags;            /* TOKLAT_NEEDS_CHECKSUM, TOKLAT_DATA_VALID */
    uint8_t gso_type;         /* TOKLAT_GSO_... */
    uint16_t gso_size;        /* payload bytes of each segment */
    uint16_t checksum_start;  /* where to start summing: bytes from the frame's start */
    uint16_t checksum_offset; /* where to store the sum: bytes from checksum_start */
};

/* What a port has done since it was opened. Begin with TOKLAT_STATS_INIT, which sets `size`. */
struct toklat_stats {
    uint32_t size;            /* sizeof(struct toklat_stats) */
    uint32_t fault;           /* 0, or the number of the fault that the port is in: TOKLAT_FAULT_... */
    uint64_t sent_frames;     /* committed and pushed */
    uint64_t sent_bytes;
    uint64_t received_frames; /* lent by toklat_receive */
    uint64_t received_bytes;
    uint64_t joined_frames;   /* of these, the ones that came in several slots */
    uint64_t resets;          /* that toklat_reset did */
    uint64_t reopens;         /* that toklat_reopen did */
};
#define TOKLAT_STATS_INIT { .size = sizeof(struct toklat_stats) }

/* What is wrong with a ring. */
#define TOKLAT_FAULT_BAD_HEAD 1u      /* a position outside the ring */
#define TOKLAT_FAULT_BAD_BUFFER 2u    /* a buffer number outside the region */
#define TOKLAT_FAULT_BAD_LENGTH 3u    /* a length beyond the buffer */
#define TOKLAT_FAULT_ENDLESS_FRAME 4u /* a frame of too many slots */
#define TOKLAT_FAULT_INDIRECT 5u      /* an indirect slot */
#define TOKLAT_FAULT_MEMORY 6u        /* the port's memory failed under the switch */
#define TOKLAT_FAULT_SLOW_BELL 7u     /* waking the program took the switch too long; open the port again */
#define TOKLAT_FAULT_SLOW_MEMORY 8u   /* the program's memory held the switch up; open the port again */
#define TOKLAT_FAULT_OFFLOAD 9u       /* a request that the port was not opened for */

/*
 * Opens the port `name`: "vale0:p1", an end of a pipe ("vale0:p1{1", "vale0:p1}1"), or a monitor ("vale0:p1/t", "/r",
 * "/rt"). `options` may be NULL. The daemon makes the port if it is not there.
 *
 * Returns 0 and the port in *port, which toklat_close ends; else a negative errno, NULL in *port, and the reason in
 * options->message: -EINVAL (name or options), -E2BIG (options of a newer library), -ECONNREFUSED (no daemon),
 * -EACCES (its socket is not yours to use), -EBUSY (the port is open), -ENOENT (no such switch, with TOKLAT_EXISTING),
 * -ENOMEM, -EMFILE, -EPROTO (a daemon of another version), or what the daemon says. May take up to 10 s when the daemon
 * is busy.
 */
int toklat_open(const char *name, const struct toklat_options *options, struct toklat_port **port);

/* Closes the port and frees it. Frames that were not flushed are lost. NULL is allowed. */
void toklat_close(struct toklat_port *port);

/* Its name, with the switch's, until toklat_close; NULL for NULL. */
const char *toklat_name(const struct toklat_port *port);

/* How many send queues it has. Queues are numbered from 0. */
int toklat_send_queues(struct toklat_port *port);

/* How many receive queues it has. */
int toklat_receive_queues(struct toklat_port *port);

/* Bytes of the largest frame that the switch takes from it, without FCS; in a pipe, what 64 slots hold. May change at
 * toklat_reopen. */
int toklat_max_frame(struct toklat_port *port);

/*
 * Lends up to `count` free slots of a send queue, and describes them in `slots`. Returns how many: 0 if the ring is full.
 * A further toklat_reserve or toklat_push on the queue takes them back. -EINVAL: no such queue, or no array.
 */
int toklat_reserve(struct toklat_port *port, unsigned int queue, struct toklat_slot *slots, unsigned int count);

/*
 * Sends the first `count` slots that toklat_reserve lent, with the lengths (in bytes) and flags in them; the next
 * toklat_flush publishes them. The others stay reserved: a later call begins with slots + count. Slots of one frame are
 * committed in one call.
 *
 * Returns 0. An error sends nothing: -EINVAL (not the slots that were lent, a length of 0 or above the capacity, an
 * unfinished frame), -EMSGSIZE (a frame of more bytes than toklat_max_frame or more than 64 slots).
 */
int toklat_commit(struct toklat_port *port, unsigned int queue, const struct toklat_slot *slots, unsigned int count);

/*
 * Copies a frame of `length` bytes into as many slots as it needs; the next toklat_flush publishes it. The frame may lie
 * anywhere, also in lent memory: a received frame, for example.
 *
 * Returns 0. An error sends nothing: -EAGAIN (no room), -EMSGSIZE (more bytes than toklat_max_frame), -EINVAL.
 */
int toklat_push(struct toklat_port *port, unsigned int queue, const void *frame, size_t length);

/*
 * The offload requests that the port carries, both ways: those it was opened with, as far as its rings have room for the
 * frames (64 KiB of one frame: 34 slots of 2 KiB). Without any, frames arrive finished.
 */
int toklat_offloads(struct toklat_port *port);

/*
 * As toklat_commit, for one frame in `count` slots with a request; `offload` may be NULL. A frame that is to be segmented
 * has up to 65,557 bytes; toklat_max_frame limits its segments. -EOPNOTSUPP: the port does not carry the request.
 */
int toklat_commit_offload(struct toklat_port *port, unsigned int queue, const struct toklat_slot *slots,
                          unsigned int count, const struct toklat_offload *offload);

/* As toklat_push, with a request, under the rules of toklat_commit_offload. */
int toklat_push_offload(struct toklat_port *port, unsigned int queue, const void *frame, size_t length,
                        const struct toklat_offload *offload);

/*
 * As toklat_receive, and writes to `offloads`, which has room for `count`, what each frame asks for. A port that carries
 * requests receives by this function. The switch has checked them; in a pipe, they are what the other end says.
 */
int toklat_receive_offload(struct toklat_port *port, unsigned int queue, struct toklat_frame *frames,
                           struct toklat_offload *offloads, unsigned int count);

/*
 * Lends up to `count` received frames of a receive queue, oldest first, and describes them in `frames`. Returns how many,
 * 0 if there are none. Each frame is lent once; the next toklat_flush or toklat_wait gives all of them back to the ring.
 * -EINVAL: no such queue, or no array. Faults of the rings are reported by toklat_flush, toklat_wait and toklat_check.
 */
int toklat_receive(struct toklat_port *port, unsigned int queue, struct toklat_frame *frames, unsigned int count);

/*
 * Publishes what was committed and pushed on all queues, gives received frames back, and wakes the switch if it sleeps:
 * at most one system call. Call it once a batch.
 *
 * Returns 0, or the state of the port: -EBADMSG (the switch found a malformed ring and ignores it: toklat_reset),
 * -EPROTO (the other side broke the rings: close the port and open it again), -ENXIO (the daemon or the port is gone:
 * toklat_reopen).
 */
int toklat_flush(struct toklat_port *port);

/*
 * Flushes, then sleeps until something of `interest` (TOKLAT_READ, TOKLAT_WRITE or both) is there. `timeout_ms` is in
 * milliseconds; 0 does not sleep, negative sleeps without limit.
 *
 * Returns the bits of what is there; 0 after the timeout, or when a signal arrived. Errors as for toklat_flush, and
 * -EINVAL.
 */
int toklat_wait(struct toklat_port *port, unsigned int interest, int timeout_ms);

/*
 * The descriptor for poll, select and epoll (wait for it to become readable), valid until toklat_reopen or toklat_close.
 * It becomes readable only after toklat_arm, and when the daemon ends. Do not read from it, and do not close it.
 */
int toklat_fd(struct toklat_port *port);

/*
 * Asks for the descriptor to become readable when something of `interest` is there, then looks once more. Returns the bits
 * of what is there already: if they are not 0, do not sleep. Flush before, and call toklat_disarm afterwards:
 *
 *     toklat_flush(port);
 *     if (toklat_arm(port, TOKLAT_READ) == 0)
 *         epoll_wait(epoll, events, 8, -1);
 *     toklat_disarm(port);
 *
 * -EINVAL: `interest` has no or unknown bits.
 */
int toklat_arm(struct toklat_port *port, unsigned int interest);

/* Takes back what toklat_arm asked for, and empties the descriptor. Returns 0, or -ENXIO if the daemon is gone. */
int toklat_disarm(struct toklat_port *port);

/* The state of the rings, without publishing and without a system call: 0, -EBADMSG or -EPROTO as for toklat_flush. */
int toklat_check(struct toklat_port *port);

/*
 * Brings the port out of its error state (-EBADMSG): the rings are as they were at first, and what was in them is lost.
 * A port that is in order stays as it is. May take up to 2 s.
 *
 * Returns 0, or -ETIMEDOUT (the switch does not answer), -EOPNOTSUPP (pipes), -EPROTO, -ENXIO as for toklat_flush.
 */
int toklat_reset(struct toklat_port *port);

/*
 * Opens the port again under its name, after -ENXIO. What was in the rings is lost, and toklat_fd returns another
 * descriptor. Returns 0; -EOPNOTSUPP for pipes, else the errors of toklat_open: the port can then be reopened later.
 */
int toklat_reopen(struct toklat_port *port);

/*
 * Writes the port's statistics to *stats. Set `size` before: TOKLAT_STATS_INIT. On return, `size` is how many bytes this
 * version of the library has written. -EINVAL: no place, or no size. The switch counts what it drops: `toklat stats`.
 */
int toklat_stats(struct toklat_port *port, struct toklat_stats *stats);

/* What the last call that failed on this port said, in English, until the next call on it; "" if none has failed. */
const char *toklat_message(const struct toklat_port *port);

/* What an error of this library means, in English; both signs are understood. Never NULL, never freed. */
const char *toklat_strerror(int error);

/* The version of the library that runs: "0.1.0". */
const char *toklat_version(void);

#ifdef __cplusplus
}
#endif

#endif
