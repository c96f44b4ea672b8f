/* Sends every frame back to where it came from: echo PORT. Waits in an epoll loop of its own, and outlives the daemon. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <threads.h>
#include <toklat.h>

#define BATCH 64

/* Answers what has come; a frame that finds no room is dropped. */
static int answer(struct toklat_port *port)
{
    struct toklat_frame frames[BATCH];
    int came = toklat_receive(port, 0, frames, BATCH);

    for (int i = 0; i < came; i++) {
        unsigned char frame[2048];
        if (frames[i].length < 14 || frames[i].length > sizeof(frame))
            continue;
        memcpy(frame, frames[i].data, frames[i].length);
        memcpy(frame, frame + 6, 6); /* to whom it came from */
        memcpy(frame + 6, "\x02\x00\x00\x00\x00\x02", 6);
        toklat_push(port, 0, frame, frames[i].length);
    }
    return came < 0 ? came : toklat_flush(port);
}

static int watch(int epoll, struct toklat_port *port)
{
    struct epoll_event event = { .events = EPOLLIN };
    return epoll_ctl(epoll, EPOLL_CTL_ADD, toklat_fd(port), &event);
}

/* Opens the port again when the daemon is back; its old descriptor is closed, so epoll has forgotten it. */
static void reopen(int epoll, struct toklat_port *port)
{
    struct timespec while_it_starts = { .tv_nsec = 100000000 };

    fprintf(stderr, "echo: %s\n", toklat_message(port));
    while (toklat_reopen(port) < 0)
        thrd_sleep(&while_it_starts, NULL);
    watch(epoll, port);
    fprintf(stderr, "echo: reopened\n");
}

int main(int argc, char **argv)
{
    struct epoll_event event;
    struct toklat_port *port;
    int epoll = epoll_create1(EPOLL_CLOEXEC), error;

    if (argc < 2) {
        fprintf(stderr, "usage: echo PORT\n");
        return 2;
    }
    if ((error = toklat_open(argv[1], NULL, &port)) < 0 || watch(epoll, port) < 0) {
        fprintf(stderr, "echo: %s: %s\n", argv[1], toklat_strerror(error));
        return 1;
    }
    for (;;) {
        error = answer(port);
        /* Arm, then sleep only if nothing came in the meantime. */
        if (error == 0 && toklat_arm(port, TOKLAT_READ) == 0)
            epoll_wait(epoll, &event, 1, -1);
        if (toklat_disarm(port) == -ENXIO || error == -ENXIO)
            reopen(epoll, port);
        else if (error == -EBADMSG)
            toklat_reset(port);
    }
}
