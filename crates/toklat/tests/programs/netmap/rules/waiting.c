/* Waiting: poll, select, epoll, threads and processes. */
#include "rules.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>

void poll_sends(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_register quiet = { .flags = NO_TX_POLL };
	struct nm c = nm_port_with("vale0:c", quiet);
	struct pollfd p = { .fd = a.fd, .events = POLLIN };
	/* poll sends, also for POLLIN, and for nothing at all. */
	nm_put(nm_tx(&a, 0), 1, -1, 1);
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 1);
	nm_put(nm_tx(&a, 0), 1, -1, 2);
	p.events = 0;
	CHECK(poll(&p, 1, 0) == 0);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 2);
	/* With NO_TX_POLL only for POLLOUT. */
	nm_put(nm_tx(&c, 0), 3, -1, 3);
	p = (struct pollfd){ .fd = c.fd, .events = POLLIN };
	/* What a and b have sent is there. */
	CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN);
	CHECK(nm_tx(&c, 0)->tail == 1023);
	p.events = POLLOUT;
	CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLOUT);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 3);
	/* Other descriptors beside netmap's. */
	int pipes[2];
	CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
	struct pollfd two[3] = { { .fd = b.fd, .events = POLLIN }, { .fd = pipes[0], .events = POLLIN }, { .fd = -1 } };
	CHECK(poll(two, 3, -1) == 1 && !two[0].revents && two[1].revents == POLLIN);
	nm_put(nm_tx(&a, 0), 1, -1, 4);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(poll(two, 2, -1) == 2 && two[0].revents == POLLIN && two[1].revents == POLLIN);
	two[1].fd = 9999;
	CHECK(poll(two, 2, -1) == 2 && two[1].revents == POLLNVAL);
}

void wakes(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		/* The child has both ports, too, and sends when it reads that it is to. */
		for (uint32_t n = 0; n < 200; n++) {
			if (n % 10 == 0)
				usleep(2000);
			nm_put(nm_tx(&a, 0), 1, -1, n);
			CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		}
		_exit(0);
	}
	for (uint32_t n = 0; n < 200; n++)
		CHECK(nm_get(b.fd, nm_rx(&b, 0)) == n);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* Nothing comes: it ends when its time is over, and by signals. */
	struct pollfd p = { .fd = b.fd, .events = POLLIN };
	CHECK(ioctl(b.fd, NIOCRXSYNC, NULL) == 0 && poll(&p, 1, 20) == 0);
}

void selects(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	fd_set read_set, write_set;
	struct timeval t = { 0, 1000 };
	FD_ZERO(&read_set);
	FD_SET(b.fd, &read_set);
	CHECK(select(b.fd + 1, &read_set, NULL, NULL, &t) == 0 && !FD_ISSET(b.fd, &read_set));
	CHECK(t.tv_sec == 0 && t.tv_usec == 0);
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	FD_ZERO(&write_set);
	FD_SET(a.fd, &write_set);
	FD_SET(b.fd, &read_set);
	CHECK(select(20, NULL, &write_set, NULL, NULL) == 1 && FD_ISSET(a.fd, &write_set));
	struct timespec s = { 30, 0 };
	CHECK(pselect(20, &read_set, NULL, NULL, &s, NULL) == 1 && FD_ISSET(b.fd, &read_set));
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 5);
}

void epolls(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int set = epoll_create1(0), pipes[2];
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = 77 }, got[4];
	CHECK(set >= 0 && pipe(pipes) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b.fd, &e) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_ADD, b.fd, &e), EEXIST);
	FAILS(epoll_ctl(set, EPOLL_CTL_MOD, a.fd, &e), ENOENT);
	e.data.u64 = 88;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &e) == 0);
	CHECK(epoll_wait(set, got, 4, 5) == 0);
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(epoll_wait(set, got, 4, 30000) == 1 && got[0].data.u64 == 77 && got[0].events == EPOLLIN);
	/* Still ready: level-triggered. */
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(epoll_wait(set, got, 4, -1) == 2);
	CHECK(got[0].data.u64 + got[1].data.u64 == 77 + 88);
	CHECK(nm_get(b.fd, nm_rx(&b, 0)) == 5 && ioctl(b.fd, NIOCRXSYNC, NULL) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1 && got[0].data.u64 == 88);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, b.fd, NULL) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, b.fd, NULL), ENOENT);
	/* Edges, and once. */
	e = (struct epoll_event){ .events = EPOLLOUT | EPOLLET, .data.u64 = 1 };
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, a.fd, &e) == 0);
	CHECK(epoll_wait(set, got, 4, 0) == 1 && got[0].events == EPOLLOUT);
	CHECK(epoll_wait(set, got, 4, 10) == 0);
	e.events = EPOLLOUT | EPOLLONESHOT;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, a.fd, &e) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1 && epoll_wait(set, got, 4, 10) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, a.fd, &e) == 0);
	CHECK(epoll_wait(set, got, 4, -1) == 1);
}

static void *late_sender(void *port)
{
	struct nm *a = port;
	/* The main thread. */
	nm_until_asleep(getpid());
	nm_put(nm_tx(a, 0), 1, -1, 9);
	CHECK(ioctl(a->fd, NIOCTXSYNC, NULL) == 0);
	return NULL;
}

static void add(int set, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event e = { .events = events, .data.u64 = data };
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) == 0);
}

/* A set is readable, in poll, select and in other sets, when netmap's descriptors in it are ready. */
void sets_in_sets(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0);
	int inner = epoll_create1(0), middle = epoll_create1(0), outer = epoll_create(1), other[2];
	struct epoll_event got[4];
	/* The innermost gets its member when it is in the others already. */
	add(outer, middle, EPOLLIN, 2);
	add(middle, inner, EPOLLIN, 1);
	add(inner, b.fd, EPOLLIN, 77);
	struct pollfd p = { .fd = inner, .events = POLLIN };
	CHECK(epoll_wait(outer, got, 4, 5) == 0 && poll(&p, 1, 5) == 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, late_sender, &a) == 0);
	CHECK(epoll_wait(outer, got, 4, 30000) == 1 && got[0].data.u64 == 2 && got[0].events == EPOLLIN);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(epoll_wait(middle, got, 4, 0) == 1 && got[0].data.u64 == 1 && got[0].events == EPOLLIN);
	CHECK(epoll_wait(inner, got, 4, 0) == 1 && got[0].data.u64 == 77);
	for (int i = 0; i < 3; i++) {
		p.fd = (int[]){ inner, middle, outer }[i];
		CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
		fd_set set;
		FD_ZERO(&set);
		FD_SET(p.fd, &set);
		CHECK(select(p.fd + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(p.fd, &set));
	}
	/* One event for a set, though the kernel sees another member that is ready. */
	CHECK(pipe(other) == 0 && write(other[1], "x", 1) == 1);
	add(inner, other[0], EPOLLIN, 78);
	CHECK(epoll_wait(middle, got, 4, -1) == 1 && got[0].data.u64 == 1);
	CHECK(epoll_wait(inner, got, 4, -1) == 2);
	CHECK(nm_get(b.fd, r) == 9);
	CHECK(epoll_wait(outer, got, 4, -1) == 1 && epoll_wait(inner, got, 4, -1) == 1 && got[0].data.u64 == 78);
	char byte;
	CHECK(read(other[0], &byte, 1) == 1 && epoll_wait(outer, got, 4, 5) == 0);
	/* Once. */
	struct epoll_event once = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 3 };
	CHECK(epoll_ctl(middle, EPOLL_CTL_MOD, inner, &once) == 0);
	nm_put(t, 1, -1, 10);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	CHECK(epoll_wait(middle, got, 4, 30000) == 1 && got[0].data.u64 == 3);
	CHECK(write(other[1], "x", 1) == 1 && epoll_wait(middle, got, 4, 5) == 0);
	CHECK(epoll_ctl(middle, EPOLL_CTL_MOD, inner, &once) == 0);
	CHECK(epoll_wait(middle, got, 4, -1) == 1);
	/* A set that is taken out, or closed, is not there. */
	once.events = EPOLLIN;
	CHECK(epoll_ctl(middle, EPOLL_CTL_MOD, inner, &once) == 0);
	CHECK(epoll_wait(outer, got, 4, -1) == 1);
	CHECK(epoll_ctl(outer, EPOLL_CTL_DEL, middle, NULL) == 0 && epoll_wait(outer, got, 4, 5) == 0);
	add(outer, inner, EPOLLIN, 4);
	CHECK(epoll_wait(outer, got, 4, -1) == 1 && got[0].data.u64 == 4);
	close(inner);
	CHECK(epoll_wait(outer, got, 4, 5) == 0 && epoll_wait(middle, got, 4, 5) == 0);
}

/* An edge is reported for each arrival, also when the one before was not seen to be over. */
void edges(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0);
	int set = epoll_create1(0);
	struct epoll_event got[2];
	add(set, b.fd, EPOLLIN | EPOLLET, 7);
	for (uint32_t n = 0; n < 100; n++) {
		nm_put(t, 1, -1, n);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		CHECK(epoll_wait(set, got, 2, 30000) == 1 && got[0].data.u64 == 7 && got[0].events == EPOLLIN);
		CHECK(n % 10 || epoll_wait(set, got, 2, 1) == 0);
		/* All that is there is taken, and no call sees that there is nothing more. */
		uint32_t number;
		memcpy(&number, nm_buf(r, r->slot[r->head].buf_idx) + 14, 4);
		CHECK(nm_space(r) == 1 && number == n);
		r->head = r->cur = nm_next(r, r->head);
	}
}

/* A thread for each ring of a port, each with a descriptor of its own, asleep most of the time. */
static void *ring_thread(void *arg)
{
	struct nm *d = arg;
	struct nm_ring *r = nm_rx(d, d->reg.ringid);
	for (uint32_t n = 0; n < 2000; n++)
		CHECK(nm_get(d->fd, r) == n);
	return NULL;
}

void threads(void)
{
	struct nm_register want = { .tx_rings = 4, .rx_rings = 4, .mode = ONE_NIC };
	struct nm d[4], all = nm_port_with("vale0:all", (struct nm_register){ .tx_rings = 4, .rx_rings = 4 });
	pthread_t thread[4];
	for (int i = 0; i < 4; i++) {
		want.ringid = i;
		d[i] = nm_port_with("vale0:many", want);
	}
	/* Its stations are known: frames go to the ring of the same number. */
	nm_put(nm_tx(&d[0], 0), 9, -1, 0);
	CHECK(ioctl(d[0].fd, NIOCTXSYNC, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, ring_thread, &d[i]) == 0);
	for (uint32_t n = 0; n < 2000; n++) {
		for (int i = 0; i < 4; i++)
			nm_put(nm_tx(&all, i), 1, 9, n);
		CHECK(ioctl(all.fd, NIOCTXSYNC, NULL) == 0);
		if (n % 20 == 0)
			usleep(500);
		else
			usleep(1);
	}
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
}

static _Atomic int sleeper_tid;

static void *sleeper(void *fd)
{
	sleeper_tid = gettid();
	struct pollfd p = { .fd = *(int *)fd, .events = POLLIN };
	poll(&p, 1, -1);
	return fd;
}

/* A thread that sleeps in poll can be cancelled, beside netmap's descriptors and others. */
void cancelled(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int other[2];
	CHECK(pipe(other) == 0);
	int *fds[] = { &b.fd, &other[0] };
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		void *end;
		CHECK(pthread_create(&thread, NULL, sleeper, fds[i]) == 0);
		while (!sleeper_tid)
			sched_yield();
		nm_until_asleep(sleeper_tid);
		sleeper_tid = 0;
		CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &end) == 0);
		CHECK(end == PTHREAD_CANCELED);
	}
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 5);
}

/* Processes that share a ring: each is woken for what comes, and takes what there is. */
void shared_ring(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int end[2], status, pid[3];
	CHECK(pipe(end) == 0);
	for (int i = 0; i < 3; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i])
			continue;
		/* Says when it was woken, and leaves the frame there. */
		struct pollfd p = { .fd = b.fd, .events = POLLIN };
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN && write(end[1], "w", 1) == 1);
		_exit(0);
	}
	for (int i = 0; i < 3; i++)
		nm_until_asleep(pid[i]);
	nm_put(nm_tx(&a, 0), 1, -1, 1);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(waitpid(pid[i], &status, 0) == pid[i] && status == 0);
	char all[3];
	CHECK(read(end[0], all, 3) == 3);
}
