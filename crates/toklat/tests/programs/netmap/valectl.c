/* valectl attach|host|poll|detach valeX:IF, or list: as netmap's vale-ctl -a, -h, -p and -P, -d and -l do. */
#include "nm.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2 || argc == 3);
	int fd = nm_open();
	if (argc == 2) {
		struct nm_list l = { 0 };
		for (;; l.port++) {
			struct nm_header h = { .version = 14, .reqtype = VALE_LIST, .body = (uintptr_t)&l };
			if (ioctl(fd, NIOCCTRL, &h) != 0)
				return 0;
			printf("%s\n", h.name);
		}
	}
	if (!strcmp(argv[1], "poll")) {
		/* One CPU polls all rings, or each its own. */
		for (uint32_t mode = 1; mode < 3; mode++) {
			struct nm_polling p = { .mode = mode, .cpus = 1 }, bad = { .mode = 3, .cpus = 1 };
			struct nm_detach d = { 0 };
			FAILS(nm_ctrl(fd, POLLING_ENABLE, argv[2], &bad), EINVAL);
			bad = (struct nm_polling){ .mode = mode };
			FAILS(nm_ctrl(fd, POLLING_ENABLE, argv[2], &bad), EINVAL);
			FAILS(nm_ctrl(fd, POLLING_DISABLE, argv[2], &p), EFAULT);
			CHECK(nm_ctrl(fd, POLLING_ENABLE, argv[2], &p) == 0 && p.mode == mode && p.cpus == 1);
			FAILS(nm_ctrl(fd, POLLING_ENABLE, argv[2], &p), EFAULT);
			FAILS(nm_ctrl(fd, VALE_DETACH, argv[2], &d), EBUSY);
			CHECK(nm_ctrl(fd, POLLING_DISABLE, argv[2], &p) == 0);
		}
		/* By the old interface. */
		struct nm_legacy l = { .version = 14, .cmd = 10, .flags = ALL_NIC, .arg1 = 1 };
		strncpy(l.name, argv[2], 15);
		CHECK(ioctl(fd, NIOCREGIF, &l) == 0);
		FAILS(ioctl(fd, NIOCREGIF, &l), EFAULT);
		l.cmd = 11;
		CHECK(ioctl(fd, NIOCREGIF, &l) == 0);
		FAILS(nm_ctrl(fd, POLLING_ENABLE, "vale0:none", &(struct nm_polling){ .mode = 1, .cpus = 1 }), ENXIO);
		FAILS(nm_ctrl(fd, POLLING_ENABLE, "none", &(struct nm_polling){ .mode = 1, .cpus = 1 }), EINVAL);
		struct nm a = nm_port("vale0:port");
		FAILS(nm_ctrl(fd, POLLING_ENABLE, "vale0:port", &(struct nm_polling){ .mode = 1, .cpus = 1 }), EOPNOTSUPP);
		return 0;
	}
	if (!strcmp(argv[1], "detach")) {
		struct nm_detach d = { 0 };
		FAILS(nm_ctrl(fd, VALE_DETACH, "vale0:none", &d), ENXIO);
		CHECK(nm_ctrl(fd, VALE_DETACH, argv[2], &d) == 0);
		FAILS(nm_ctrl(fd, VALE_DETACH, argv[2], &d), ENXIO);
		return 0;
	}
	struct nm_attach a = { .reg.mode = !strcmp(argv[1], "host") ? NIC_SW : ALL_NIC };
	CHECK(nm_ctrl(fd, VALE_ATTACH, argv[2], &a) == 0);
	FAILS(nm_ctrl(fd, VALE_ATTACH, argv[2], &a), EBUSY);
	struct nm_register r = { .mode = ALL_NIC };
	FAILS(nm_ctrl(fd, REGISTER, strchr(argv[2], ':') + 1, &r), EBUSY);
	return 0;
}
