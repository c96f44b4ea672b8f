/* Copies of descriptors, in this process and in others. */
#include "rules.h"
#include <sys/socket.h>
#include <sys/wait.h>

/* All copies of a descriptor are the same port; the last close ends it. */
void copies(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	int copy = dup(b.fd), high = fcntl(b.fd, F_DUPFD, 100), third = dup2(b.fd, 77);
	CHECK(copy > b.fd && high == 100 && third == 77);
	struct nm_register any = { .mode = ALL_NIC };
	FAILS(nm_ctrl(copy, REGISTER, "vale0:c", &any), EBUSY);
	close(b.fd);
	close(high);
	for (uint32_t n = 0; n < 10; n++) {
		nm_put(nm_tx(&a, 0), 1, -1, n);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		CHECK(nm_get(n % 2 ? copy : 77, nm_rx(&b, 0)) == n);
	}
	char *again = mmap(NULL, b.reg.memsize, PROT_READ, MAP_SHARED, copy, 0);
	CHECK(again != MAP_FAILED && !memcmp(again + b.reg.offset, b.nifp, 64));
	/* Another file in the place of one. */
	CHECK(dup2(0, 77) == 77);
	FAILS(ioctl(77, NIOCTXSYNC, NULL), ENOTTY);
	struct nm_list list = { 0 };
	CHECK(nm_ctrl(a.fd, VALE_LIST, "vale0:b", &list) == 0 && list.port == 1);
	close(copy);
	CHECK(nm_ctrl(a.fd, VALE_LIST, "vale0:b", &list) == 0 && list.port == 255);
}

static void pass(int to, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	CHECK(sendmsg(to, &m, 0) == 1);
}

static int passed(int from)
{
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	int fd;
	CHECK(recvmsg(from, &m, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
	return fd;
}

/* A descriptor goes to a process that has never opened the device, which loses all others. */
void passing(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	int pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		for (int fd = 0; fd < 2000; fd++)
			if (fd != pair[1] && fd != 2)
				close(fd);
		int fd = passed(pair[1]);
		struct nm_register reg;
		CHECK(read(pair[1], &reg, sizeof(reg)) == sizeof(reg));
		struct nm d = { .fd = fd, .reg = reg };
		nm_map(&d);
		for (uint32_t n = 0; n < 1000; n++) {
			nm_put(nm_tx(&d, 0), 1, -1, n);
			CHECK(ioctl(fd, NIOCTXSYNC, NULL) == 0);
			CHECK(nm_get(fd, nm_rx(&d, 0)) == n);
		}
		_exit(0);
	}
	close(pair[1]);
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	pass(pair[0], a.fd);
	CHECK(write(pair[0], &a.reg, sizeof(a.reg)) == sizeof(a.reg));
	close(a.fd);
	for (uint32_t n = 0; n < 1000; n++) {
		CHECK(nm_get(b.fd, nm_rx(&b, 0)) == n);
		nm_put(nm_tx(&b, 0), 2, -1, n);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	struct nm_list list = { 0 };
	CHECK(nm_ctrl(b.fd, VALE_LIST, "vale0:a", &list) == 0 && list.port == 255);
}

/* The program is run anew with the descriptor open. */
void executed(void)
{
	char *given = getenv("NM_FD");
	if (given) {
		struct nm d = { .fd = atoi(given) };
		d.reg.memsize = strtoull(getenv("NM_SIZE"), NULL, 10);
		d.reg.offset = strtoull(getenv("NM_OFFSET"), NULL, 10);
		nm_map(&d);
		struct nm b = nm_port("vale0:b");
		nm_put(nm_tx(&d, 0), 1, -1, 4);
		CHECK(ioctl(d.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 4);
		return;
	}
	struct nm d = nm_port("vale0:a");
	char text[32];
	snprintf(text, sizeof(text), "%d", d.fd);
	setenv("NM_FD", text, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)d.reg.memsize);
	setenv("NM_SIZE", text, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)d.reg.offset);
	setenv("NM_OFFSET", text, 1);
	execl("/proc/self/exe", "rules", "executed", (char *)NULL);
	CHECK(0);
}

void close_all(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	/* All but netmap's two, also those of the library. */
	for (int fd = 3; fd < 70000; fd++)
		if (fd != a.fd && fd != b.fd)
			close(fd);
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 5);
	CHECK(close_range(3, ~0U, 0) == 0);
	FAILS(ioctl(a.fd, NIOCTXSYNC, NULL), EBADF);
	a = nm_port("vale0:a");
	nm_put(nm_tx(&a, 0), 1, -1, 5);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
}
