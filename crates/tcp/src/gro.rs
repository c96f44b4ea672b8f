//! Receive merging (GRO): consecutive segments of one flow in a batch become one.

use crate::segment::{Ecn, Flags, Segment};

/// The maximum number of bytes of a run.
const MOST: usize = 1 << 18;

/// Returns how many segments at the start of `batch` can be processed as one.
///
/// The conditions are those of Linux (`net/ipv4/tcp_offload.c`): one flow, no gap, and the same
/// acknowledgment, window and options. Only ACK and PSH may be set. PSH ends a run, as does FIN.
pub(crate) fn run_length(batch: &[Segment<'_>]) -> usize {
    let Some(first) = batch.first().filter(|first| is_plain(first)) else {
        return batch.len().min(1);
    };
    let mut bytes = first.payload.len();
    let mut last = first;
    let mut len = 1;
    for next in &batch[1..] {
        let open = !last.header.flags.intersects(Flags::PSH | Flags::FIN);
        if !open || bytes + next.payload.len() > MOST || !follows(last, next) {
            break;
        }
        bytes += next.payload.len();
        last = next;
        len += 1;
    }
    len
}

fn is_plain(segment: &Segment<'_>) -> bool {
    let flags = segment.header.flags - Flags::PSH;
    flags == Flags::ACK && !segment.payload.is_empty() && segment.header.options.sack.is_empty()
}

fn follows(last: &Segment<'_>, next: &Segment<'_>) -> bool {
    let (a, b) = (&last.header, &next.header);
    let stamps = match (a.options.timestamp, b.options.timestamp) {
        (Some(a), Some(b)) => a.echo == b.echo && (b.value.wrapping_sub(a.value) as i32) >= 0,
        (None, None) => true,
        _ => false,
    };
    let flags = b.flags - (Flags::PSH | Flags::FIN);
    flags == Flags::ACK
        && b.seq == a.seq + last.payload.len() as u32
        && a.ack == b.ack
        && a.window == b.window
        && a.ecn == b.ecn
        && a.ecn != Ecn::Congested
        && stamps
        && b.options.sack.is_empty()
        && !next.payload.is_empty()
        && a.flow == b.flow
}
