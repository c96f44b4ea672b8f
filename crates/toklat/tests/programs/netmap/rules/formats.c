/* What slots hold besides frames: offsets and virtio-net headers. */
#include "rules.h"

struct offsets_option {
	struct nm_option o;
	uint64_t max, initial;
	uint32_t bits, align;
	uint64_t gap;
};

static struct offsets_option offsets_of(uint64_t max, uint64_t initial, uint32_t bits)
{
	return (struct offsets_option){ .o.reqtype = 5, .max = max, .initial = initial, .bits = bits };
}

static struct nm port_with_offsets(const char *name, struct offsets_option *o)
{
	struct nm d = { .fd = nm_open(), .reg = { .mode = ALL_NIC } };
	CHECK(nm_ctrl_with(d.fd, REGISTER, name, &d.reg, o) == 0 && o->o.status == 0);
	nm_map(&d);
	return d;
}

/* The bytes of a slot of a ring with offsets. */
static char *bytes_of(struct nm_ring *r, struct nm_slot *s)
{
	return nm_buf(r, s->buf_idx) + (s->ptr & r->offset_mask);
}

/* Puts a frame into the next slot, at an offset. */
static void put_at(struct nm_ring *r, uint64_t offset, uint32_t number)
{
	CHECK(nm_space(r) > 0);
	struct nm_slot *s = &r->slot[r->head];
	memset(nm_buf(r, s->buf_idx), 0xee, r->nr_buf_size);
	s->ptr = (s->ptr & ~r->offset_mask) | offset;
	nm_frame(bytes_of(r, s), 1, -1, number);
	s->len = 60;
	s->flags = 0;
	r->head = r->cur = nm_next(r, r->head);
}

static struct nm_slot *wait_for_slot(int fd, struct nm_ring *r)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	while (nm_space(r) == 0)
		CHECK(poll(&p, 1, 30000) == 1 && p.revents == POLLIN);
	return &r->slot[r->head];
}

static void release(struct nm_ring *r)
{
	r->head = r->cur = nm_next(r, r->head);
}

void offsets(void)
{
	struct nm_register reg = { .mode = ALL_NIC };
	int fd = nm_open();
	/* An initial offset beyond the largest; one that its bits cannot hold; one beyond the buffer. */
	struct offsets_option bad[] = {
		offsets_of(128, 129, 12), offsets_of(128, 0, 7), offsets_of(128, 0, 65), offsets_of(2113, 0, 0),
	};
	for (int i = 0; i < 4; i++) {
		FAILS(nm_ctrl_with(fd, REGISTER, "vale0:x", &reg, &bad[i]), EINVAL);
		CHECK(bad[i].o.status == EINVAL);
	}
	struct offsets_option o = offsets_of(512, 32, 12);
	struct nm a = nm_port("vale0:a"), b = port_with_offsets("vale0:b", &o);
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0), *bt = nm_tx(&b, 0), *ar = nm_rx(&a, 0);
	CHECK(t->offset_mask == 0 && r->offset_mask == 0xfff && bt->offset_mask == 0xfff);
	for (uint32_t i = 0; i < r->num_slots; i++)
		CHECK(r->slot[i].ptr == 32 && bt->slot[i].ptr == 32);
	/* Frames lie where their slots say, which may change each time that a slot is released. The other
	   bits are the program's. */
	uint64_t want[1024];
	for (uint32_t i = 0; i < 1024; i++)
		want[i] = 32;
	for (uint32_t n = 0; n < 3000; n++) {
		nm_put(t, 1, -1, n);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		struct nm_slot *s = wait_for_slot(b.fd, r);
		char frame[60];
		nm_frame(frame, 1, -1, n);
		CHECK((s->ptr & 0xfff) == want[r->head] && s->len == 60 && !memcmp(bytes_of(r, s), frame, 60));
		want[r->head] = n % 512;
		s->ptr = 0x5000 | n % 512;
		release(r);
	}
	/* What is sent starts at its offset, too. */
	for (uint32_t n = 0; n < 2000; n++) {
		put_at(bt, n % 512, n);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, ar) == n);
	}
	/* A frame of several slots, with an offset in each. */
	for (int i = 0; i < 3; i++) {
		struct nm_slot *s = &bt->slot[bt->head];
		s->ptr = 100 * i;
		memset(bytes_of(bt, s), 'a' + i, 1000);
		if (!i)
			nm_frame(bytes_of(bt, s), 1, -1, 7);
		s->len = 1000;
		s->flags = i < 2 ? MOREFRAG : 0;
		release(bt);
	}
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
	uint32_t seen = 0;
	for (int more = 1; more; release(ar)) {
		struct nm_slot *s = wait_for_slot(a.fd, ar);
		for (uint32_t i = 0; i < s->len; i++, seen++)
			CHECK(seen < 60 || nm_buf(ar, s->buf_idx)[i] == (char)('a' + seen / 1000));
		more = s->flags & MOREFRAG;
	}
	CHECK(seen == 3000);
	/* An offset beyond the buffer's end makes a frame of no bytes; those around it go. */
	put_at(bt, 0, 1);
	put_at(bt, 0, 2);
	struct nm_slot *s = &bt->slot[(bt->head + bt->num_slots - 1) % bt->num_slots];
	s->ptr = 2100;
	put_at(bt, 0, 3);
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, ar) == 1 && nm_get(a.fd, ar) == 3);
	/* Other bytes of the program, by address. */
	char frame[60];
	nm_frame(frame, 1, -1, 9);
	put_at(bt, 0, 0);
	s = &bt->slot[(bt->head + bt->num_slots - 1) % bt->num_slots];
	s->ptr = (uintptr_t)frame;
	s->flags = INDIRECT;
	CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0 && nm_get(a.fd, ar) == 9);
	/* A receiver without offsets that are left for the frame: two slots for one. */
	for (uint32_t i = 0; i < 3; i++) {
		nm_put(t, 1, -1, i);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
		wait_for_slot(b.fd, r);
		release(r);
	}
	/* Another descriptor of the port gets the offsets of the first, and no wider ones. */
	o = offsets_of(513, 0, 12);
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:b", &reg, &o), EBUSY);
	CHECK(o.o.status == EBUSY);
	o = offsets_of(512, 0, 13);
	FAILS(nm_ctrl_with(fd, REGISTER, "vale0:b", &reg, &o), EBUSY);
	uint64_t was = bt->slot[bt->head].ptr;
	o = offsets_of(64, 16, 11);
	struct nm c = port_with_offsets("vale0:b", &o);
	CHECK(o.max == 512 && nm_rx(&c, 0)->offset_mask == 0xfff && bt->slot[bt->head].ptr == was);
	/* All bits; and the offset goes through a pipe with its slot. */
	o = offsets_of(1000, 0, 0);
	struct nm p = port_with_offsets("vale0:p{1", &o), q = port_with_offsets("vale0:p}1", &o);
	CHECK(nm_tx(&p, 0)->offset_mask == ~0ULL && nm_rx(&q, 0)->offset_mask == ~0ULL);
	put_at(nm_tx(&p, 0), 777, 5);
	CHECK(ioctl(p.fd, NIOCTXSYNC, NULL) == 0);
	s = wait_for_slot(q.fd, nm_rx(&q, 0));
	nm_frame(frame, 1, -1, 5);
	CHECK(s->ptr == 777 && !memcmp(bytes_of(nm_rx(&q, 0), s), frame, 60));
	/* The port's next rings have none. */
	close(c.fd);
	close(b.fd);
	b = nm_port("vale0:b");
	CHECK(nm_rx(&b, 0)->offset_mask == 0 && nm_rx(&b, 0)->slot[0].ptr == 0);
	nm_put(t, 1, -1, 4);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, nm_rx(&b, 0)) == 4);
}

/* The sum of the Internet checksum over some bytes. */
static uint32_t sum_of(const unsigned char *at, uint32_t len, uint32_t sum)
{
	for (uint32_t i = 0; i < len; i++)
		sum += i % 2 ? at[i] : at[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

enum { ETHERNET = 14, IP = 20, TCP = 20, HEADERS = ETHERNET + IP + TCP };

/* The sum of an IPv4 packet's pseudo header. */
static uint32_t pseudo(const unsigned char *frame, uint32_t len)
{
	return sum_of(frame + ETHERNET + 12, 8, frame[ETHERNET + 9] + len);
}

/* A frame with TCP of `len` bytes of payload, whose checksum is left to the receiver. */
static uint32_t make_tcp(unsigned char *frame, uint32_t len)
{
	unsigned char ip[IP] = { 0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2 };
	nm_frame((char *)frame, 1, -1, 0);
	frame[12] = 8;
	frame[13] = 0;
	ip[2] = (IP + TCP + len) >> 8;
	ip[3] = (unsigned char)(IP + TCP + len);
	uint32_t sum = ~sum_of(ip, IP, 0);
	ip[10] = sum >> 8;
	ip[11] = (unsigned char)sum;
	memcpy(frame + ETHERNET, ip, IP);
	unsigned char *tcp = frame + ETHERNET + IP;
	memset(tcp, 0, TCP);
	tcp[1] = 80;
	tcp[3] = 81;
	tcp[12] = 5 << 4;
	tcp[13] = 0x10;
	for (uint32_t i = 0; i < len; i++)
		tcp[TCP + i] = (unsigned char)(i / 7);
	sum = pseudo(frame, TCP + len);
	tcp[16] = sum >> 8;
	tcp[17] = (unsigned char)sum;
	return HEADERS + len;
}

/* A virtio-net header that asks for the checksum of TCP, and for segments of `size` bytes. */
static void make_header(unsigned char *at, uint32_t size)
{
	unsigned char header[12] = { 1, size ? 1 : 0, HEADERS, 0, (unsigned char)size, size >> 8,
		ETHERNET + IP, 0, 16, 0 };
	memcpy(at, header, 12);
}

/* Puts bytes into the next slot. */
static void put_bytes(struct nm_ring *r, const void *bytes, uint32_t len, uint16_t flags)
{
	CHECK(nm_space(r) > 0);
	struct nm_slot *s = &r->slot[r->head];
	memcpy(nm_buf(r, s->buf_idx), bytes, len);
	s->len = len;
	s->flags = flags;
	release(r);
}

static void set_header(const char *name, uint32_t len)
{
	struct nm_port_hdr hdr = { .len = len };
	int fd = nm_open();
	CHECK(nm_ctrl(fd, PORT_HDR_SET, name, &hdr) == 0);
	hdr.len = 99;
	CHECK(nm_ctrl(fd, PORT_HDR_GET, name, &hdr) == 0 && hdr.len == len);
	close(fd);
}

void port_headers(void)
{
	struct nm a = nm_port("vale0:a"), b = nm_port("vale0:b");
	struct nm_ring *t = nm_tx(&a, 0), *r = nm_rx(&b, 0), *ar = nm_rx(&a, 0), *bt = nm_tx(&b, 0);
	unsigned char bytes[2048] = { 0 }, zeros[12] = { 0 };
	static const uint32_t lengths[] = { 12, 10, 0, 12 };
	for (uint32_t n = 0; n < 4; n++) {
		/* From the next frame on, in both directions. */
		uint32_t len = lengths[n];
		set_header("vale0:a", len);
		memset(bytes, 0, sizeof(bytes));
		nm_frame((char *)bytes + len, 1, -1, n);
		put_bytes(t, bytes, len + 60, 0);
		CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, r) == n);
		nm_put(bt, 2, 1, 100 + n);
		CHECK(ioctl(b.fd, NIOCTXSYNC, NULL) == 0);
		struct nm_slot *s = wait_for_slot(a.fd, ar);
		char *got = nm_buf(ar, s->buf_idx);
		nm_frame((char *)bytes, 2, 1, 100 + n);
		CHECK(s->len == len + 60 && !memcmp(got, zeros, len) && !memcmp(got + len, bytes, 60));
		release(ar);
	}
	/* The header alone in the first slot. */
	nm_frame((char *)bytes, 1, -1, 7);
	put_bytes(t, zeros, 12, MOREFRAG);
	put_bytes(t, bytes, 60, 0);
	/* A header that is cut short, and requests that make no sense: these frames are dropped. */
	put_bytes(t, zeros, 11, MOREFRAG);
	put_bytes(t, bytes, 60, 0);
	unsigned char odd[3][10] = { { 0, 3, 0, 0, 9 }, { 1, 0, 0, 0, 0, 0, 200, 0, 6 }, { 1, 1, 0, 0, 0, 0, 34, 0, 16 } };
	for (int i = 0; i < 3; i++) {
		unsigned char frame[80] = { 0 };
		memcpy(frame, odd[i], 10);
		nm_frame((char *)frame + 12, 1, -1, 66);
		put_bytes(t, frame, 72, 0);
	}
	nm_frame((char *)bytes + 12, 1, -1, 8);
	memset(bytes, 0, 12);
	put_bytes(t, bytes, 72, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0 && nm_get(b.fd, r) == 7 && nm_get(b.fd, r) == 8);
	/* A checksum that is left to do is complete for a receiver without headers. */
	uint32_t len = make_tcp(bytes + 12, 33);
	make_header(bytes, 0);
	put_bytes(t, bytes, 12 + len, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	struct nm_slot *s = wait_for_slot(b.fd, r);
	unsigned char *got = (unsigned char *)nm_buf(r, s->buf_idx);
	CHECK(s->len == len && sum_of(got + ETHERNET + IP, TCP + 33, pseudo(got, TCP + 33)) == 0xffff);
	release(r);
	/* Segments are made for it, too. */
	len = make_tcp(bytes + 12, 1200);
	make_header(bytes, 500);
	put_bytes(t, bytes, 12 + len, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	for (uint32_t from = 0; from < 1200; from += 500) {
		uint32_t part = from < 1000 ? 500 : 200;
		s = wait_for_slot(b.fd, r);
		got = (unsigned char *)nm_buf(r, s->buf_idx);
		CHECK(s->len == HEADERS + part && !memcmp(got + HEADERS, bytes + 12 + HEADERS + from, part));
		CHECK(sum_of(got + ETHERNET + IP, TCP + part, pseudo(got, TCP + part)) == 0xffff);
		release(r);
	}
	/* A receiver with headers gets the request as it is, and nothing is computed. */
	set_header("vale0:b", 10);
	put_bytes(t, bytes, 12 + len, 0);
	CHECK(ioctl(a.fd, NIOCTXSYNC, NULL) == 0);
	s = wait_for_slot(b.fd, r);
	got = (unsigned char *)nm_buf(r, s->buf_idx);
	CHECK(s->len == 10 + len && !memcmp(got, bytes, 10) && !memcmp(got + 10, bytes + 12, len));
	release(r);
	/* Programs that do not say that they know headers do not get the port. */
	struct nm_register reg = { .mode = ALL_NIC };
	int fd = nm_open();
	FAILS(nm_ctrl(fd, REGISTER, "vale0:a", &reg), EIO);
	reg.flags = ACCEPT_VNET_HDR;
	CHECK(nm_ctrl(fd, REGISTER, "vale0:a", &reg) == 0);
	struct nm_port_hdr hdr = { .len = 12 };
	FAILS(nm_ctrl(fd, PORT_HDR_SET, "vale0:none", &hdr), ENXIO);
	/* The legacy interface. */
	struct nm_legacy old = { .version = 14, .cmd = 12 };
	strcpy(old.name, "vale0:a");
	CHECK(ioctl(fd, NIOCREGIF, &old) == 0 && old.arg1 == 12);
}
