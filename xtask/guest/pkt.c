/* pkt: sends, counts and echoes packets in the test guest. It prints one JSON object, and errors on standard error.
 *
 *   pkt send DEV MAC BYTES SECONDS    raw frames to MAC (EtherType 0x88b5), many in a call, past the queueing discipline
 *   pkt recv DEV SECONDS              counts such frames, from the first one on
 *   pkt echo PORT                     sends UDP datagrams back, for ever
 *   pkt ask ADDRESS PORT BYTES COUNT  round trips to `pkt echo`, one at a time
 *   pkt udp ADDRESS PORT BYTES SECONDS  UDP datagrams, many in a call
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, ETHERTYPE = 0x88b5, LARGEST = 65536 };

static void fail(const char *what) {
    fprintf(stderr, "pkt: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void usage(void) {
    fputs("usage: pkt send DEV MAC BYTES SECONDS | recv DEV SECONDS | echo PORT | ask ADDRESS PORT BYTES COUNT\n"
          "     | udp ADDRESS PORT BYTES SECONDS\n", stderr);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t bytes_of(const char *text, size_t least) {
    long bytes = atol(text);
    if (bytes < (long)least || bytes > LARGEST) {
        fprintf(stderr, "pkt: %s: from %zu to %d bytes\n", text, least, LARGEST);
        exit(2);
    }
    return (size_t)bytes;
}

static void report(const char *what, unsigned long frames, double seconds, size_t bytes) {
    double pps = seconds > 0 ? (double)frames / seconds : 0;
    printf("{\"%s\": %lu, \"seconds\": %.3f, \"pps\": %.0f, \"bps\": %.0f}\n", what, frames, seconds, pps,
           pps * (double)bytes * 8);
}

/* Sends the same message until the time is over. */
static void send_for(int fd, const void *frame, size_t bytes, double seconds) {
    struct iovec iov = {.iov_base = (void *)frame, .iov_len = bytes};
    struct mmsghdr batch[BATCH] = {0};
    for (int i = 0; i < BATCH; i++) batch[i].msg_hdr = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
    unsigned long sent = 0;
    double start = now(), end = start + seconds, t;
    while ((t = now()) < end) {
        int n = sendmmsg(fd, batch, BATCH, 0);
        if (n > 0) sent += (unsigned long)n;
        else if (errno != ENOBUFS && errno != EAGAIN && errno != ECONNREFUSED) fail("sendmmsg");
    }
    report("sent", sent, t - start, bytes);
}

static int packet_socket(const char *dev, struct ifreq *ifr) {
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETHERTYPE));
    if (fd < 0) fail("a packet socket");
    memset(ifr, 0, sizeof *ifr);
    strncpy(ifr->ifr_name, dev, IFNAMSIZ - 1);
    if (ioctl(fd, SIOCGIFINDEX, ifr)) fail(dev);
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE), .sll_ifindex = ifr->ifr_ifindex};
    if (bind(fd, (struct sockaddr *)&at, sizeof at)) fail("bind");
    if (ioctl(fd, SIOCGIFHWADDR, ifr)) fail(dev);
    return fd;
}

static void send_raw(const char *dev, const char *to, size_t bytes, double seconds) {
    static unsigned char frame[LARGEST];
    struct ifreq ifr;
    int fd = packet_socket(dev, &ifr), one = 1;
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
    unsigned char *m = frame;
    if (sscanf(to, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5) != 6) usage();
    memcpy(frame + 6, ifr.ifr_hwaddr.sa_data, 6);
    frame[12] = ETHERTYPE >> 8;
    frame[13] = ETHERTYPE & 0xff;
    send_for(fd, frame, bytes, seconds);
}

static void receive_raw(const char *dev, double seconds) {
    static unsigned char space[BATCH][2048];
    struct ifreq ifr;
    int fd = packet_socket(dev, &ifr), room = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    struct timeval limit = {.tv_sec = 10};
    struct iovec iov[BATCH];
    struct mmsghdr batch[BATCH] = {0};
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){.iov_base = space[i], .iov_len = sizeof space[i]};
        batch[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (recvmmsg(fd, batch, 1, 0, NULL) < 1) fail("nothing came within 10 s");
    size_t bytes = batch[0].msg_len;
    limit = (struct timeval){.tv_usec = 100000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    unsigned long got = 1;
    double start = now(), last = start, end = start + seconds;
    while (now() < end) {
        int n = recvmmsg(fd, batch, BATCH, MSG_WAITFORONE, NULL);
        if (n > 0) got += (unsigned long)n, last = now();
    }
    report("received", got, last - start, bytes);
}

static int udp_socket(const char *address, const char *port, struct sockaddr_in *at) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
    if (fd < 0) fail("a socket");
    if (address && inet_pton(AF_INET, address, &at->sin_addr) != 1) usage();
    return fd;
}

static void echo(const char *port) {
    static char space[LARGEST];
    struct sockaddr_in at, from;
    int fd = udp_socket(NULL, port, &at);
    if (bind(fd, (struct sockaddr *)&at, sizeof at)) fail("bind");
    for (;;) {
        socklen_t len = sizeof from;
        ssize_t n = recvfrom(fd, space, sizeof space, 0, (struct sockaddr *)&from, &len);
        if (n >= 0) sendto(fd, space, (size_t)n, 0, (struct sockaddr *)&from, len);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void ask(const char *address, const char *port, size_t bytes, int count) {
    static char space[LARGEST];
    struct sockaddr_in at;
    int fd = udp_socket(address, port, &at), got = 0, lost = 0;
    double *trips = calloc((size_t)(count > 0 ? count : 1), sizeof *trips);
    /* Long, for a busy machine: nothing but a lost frame takes it. */
    struct timeval limit = {.tv_sec = 3};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (!trips || connect(fd, (struct sockaddr *)&at, sizeof at)) fail("connect");
    for (unsigned i = 0; got < count && lost < 20; i++) {
        unsigned back = ~i;
        memcpy(space, &i, sizeof i);
        double start = now();
        if (send(fd, space, bytes, 0) < 0 && errno != ECONNREFUSED) fail("send");
        /* What came too late for an earlier question is passed over. */
        ssize_t n;
        while ((n = recv(fd, space, sizeof space, 0)) >= (ssize_t)sizeof back &&
               (memcpy(&back, space, sizeof back), back != i)) {}
        if (n < 0) {
            /* Nobody listens yet: ask again in a moment. */
            if (errno == ECONNREFUSED) usleep(100000);
            lost++;
        } else trips[got++] = (now() - start) * 1e6;
    }
    if (!got) fail("no answer");
    qsort(trips, (size_t)got, sizeof *trips, ascending);
    printf("{\"round_trips\": %d, \"lost\": %d, \"us_median\": %.2f, \"us_99\": %.2f, \"us_least\": %.2f}\n", got, lost,
           trips[got / 2], trips[(size_t)got * 99 / 100], trips[0]);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "send") && argc == 6) send_raw(argv[2], argv[3], bytes_of(argv[4], 14), atof(argv[5]));
    else if (!strcmp(what, "recv") && argc == 4) receive_raw(argv[2], atof(argv[3]));
    else if (!strcmp(what, "echo") && argc == 3) echo(argv[2]);
    else if (!strcmp(what, "ask") && argc == 6) ask(argv[2], argv[3], bytes_of(argv[4], 4), atoi(argv[5]));
    else if (!strcmp(what, "udp") && argc == 6) {
        struct sockaddr_in at;
        static char space[LARGEST];
        int fd = udp_socket(argv[2], argv[3], &at);
        if (connect(fd, (struct sockaddr *)&at, sizeof at)) fail("connect");
        send_for(fd, space, bytes_of(argv[4], 1), atof(argv[5]));
    } else usage();
    return 0;
}
