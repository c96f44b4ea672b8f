/* valectl attach|host|detach valeX:IF, or list: as netmap's vale-ctl -a, -h, -d and -l do. */
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
