/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The driver's end of the shared status block, version 2: a page in which driver and device tell each other where they
 * are, so that neither needs a trap or an interrupt while the other is awake. crates/nic/src/csb has the layout, and
 * what each side must do.
 *
 * Each word has one writer. A flag is armed while it is odd, each arming is one more than the last, and who answers
 * remembers which one he has answered.
 */
#ifndef TOKLAT_E1000_CSB_H
#define TOKLAT_E1000_CSB_H

#include <linux/build_bug.h>
#include <linux/types.h>
#include <asm/barrier.h>
#include <asm/byteorder.h>

#define CSB_MAGIC	0x32425343
#define CSB_VERSION	2
#define CSB_NONE	0xffffffffu
#define CSB_QUEUES	4
#define CSB_PAGE	4096

struct csb_guest_line {
	__le32 tail;
	__le32 want;
	__le32 want_at;
	__le32 on;
} __aligned(128);

struct csb_host_line {
	__le32 head;
	__le32 ask;
	__le32 ask_at;
} __aligned(128);

struct csb_queue {
	struct csb_guest_line guest;
	struct csb_host_line host;
};

struct csb_page {
	struct {
		__le32 zero[7];
		__le32 magic;
		__le32 version;
		__le32 features;
		__le32 queues;
		__le32 spin_us;
	} guest __aligned(128);
	struct {
		__le32 magic;
		__le32 version;
		__le32 features;
		__le32 queues;
		__le32 spin_us;
		__le32 fault;
	} host __aligned(128);
	u8 reserved[0x300];
	struct csb_queue send[CSB_QUEUES];
	struct csb_queue receive[CSB_QUEUES];
};

static_assert(offsetof(struct csb_page, guest.magic) == 0x1c);
static_assert(offsetof(struct csb_page, host) == 0x80);
static_assert(offsetof(struct csb_page, send) == 0x400);
static_assert(offsetof(struct csb_page, receive) == 0x800);
static_assert(offsetof(struct csb_queue, host) == 0x80);
static_assert(sizeof(struct csb_page) <= CSB_PAGE);

/* One queue, as this driver goes by it. */
struct csb_end {
	struct csb_queue *lines;	/* none: the queue goes by its registers */
	u32 size;
	u32 tail;			/* published last */
	u32 wanted;			/* what "want" was set to last */
	u32 answered;			/* the device's arming that was answered last */
};

static inline bool csb_on(const struct csb_end *end)
{
	return end->lines;
}

/* True if going from "from" to "to" in a ring of "size" comes to "at" or passes it. */
static inline bool csb_passes(u32 from, u32 to, u32 at, u32 size)
{
	if (at >= size || at == from)
		return false;
	return (at + size - from) % size <= (to + size - from) % size;
}

/*
 * Makes descriptors up to "tail" the device's; true if the doorbell must be rung. Descriptors were written before. The
 * full fence is between the tail and the device's flag, as the device's own is between its flag and the tail: one of
 * the two sees what the other wrote.
 */
static inline bool csb_publish(struct csb_end *end, u32 tail)
{
	u32 from = end->tail, ask, at;

	virt_store_release(&end->lines->guest.tail, cpu_to_le32(tail));
	end->tail = tail;
	virt_mb();
	ask = le32_to_cpu(READ_ONCE(end->lines->host.ask));
	if (likely(!(ask & 1) || ask == end->answered))
		return false;
	virt_rmb();
	at = le32_to_cpu(READ_ONCE(end->lines->host.ask_at));
	if (at != CSB_NONE && !csb_passes(from, tail, at, end->size))
		return false;
	end->answered = ask;
	return true;
}

/* Descriptors before this index are the driver's again. A device that says nonsense is not followed. */
static inline u32 csb_head(const struct csb_end *end, u32 otherwise)
{
	u32 head = le32_to_cpu(virt_load_acquire(&end->lines->host.head));

	return likely(head < end->size) ? head : otherwise;
}

/* Asks for an interrupt when the head comes to "at". The caller looks once more after this, and may only then sleep. */
static inline void csb_want(struct csb_end *end, u32 at)
{
	WRITE_ONCE(end->lines->guest.want_at, cpu_to_le32(at));
	end->wanted += 1 + (end->wanted & 1);
	virt_store_release(&end->lines->guest.want, cpu_to_le32(end->wanted));
	virt_mb();
}

/* Takes that back. */
static inline void csb_unwant(struct csb_end *end)
{
	if (!(end->wanted & 1))
		return;
	end->wanted += 1;
	WRITE_ONCE(end->lines->guest.want, cpu_to_le32(end->wanted));
	WRITE_ONCE(end->lines->guest.want_at, cpu_to_le32(CSB_NONE));
}

struct nic;

int csb_announce(struct nic *nic);
void csb_start(struct nic *nic);
void csb_withdraw(struct nic *nic);
u32 csb_fault(const struct nic *nic);

#endif
