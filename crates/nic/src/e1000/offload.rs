//! What transmit descriptors ask for, and how it becomes a frame's offload request (82540EM manual,
//! 3.3.6 to 3.5).
//!
//! This module computes no checksums or segments where the switch can. It passes requests on, in
//! virtio's meaning. Headers that must be rewritten for that are a private copy.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use frame::checksum::{Sum, complete};
use port::Offload;
use shmem::{Bytes, Mapping, Span};

use super::ring::tx;

/// Bytes of a private header.
const HEADER: usize = 256;
/// Bytes of a frame that may be copied into the private header; a tag may be inserted.
const COPIED: usize = HEADER - TAG;
/// Longest headers, in bytes, of a frame with segmentation.
const SEGMENT_HEADERS: usize = 240;
/// Private headers.
const HEADERS: usize = 1024;
/// Bytes of a VLAN tag, and the offset where it is inserted.
const TAG: usize = 4;
const TAG_AT: usize = 12;
/// An unknown kind of segmentation: the switch drops the frame and counts it.
const IMPOSSIBLE: u8 = 0x7f;
/// In TCP's flags: congestion window reduced.
const CWR: u8 = 0x80;

/// A context descriptor, as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Context([u32; 4]);

impl Context {
    pub fn new(first: u64, second: u64) -> Self {
        Self([first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32])
    }

    pub fn load(from: &[AtomicU32; 4]) -> Self {
        Self([0, 1, 2, 3].map(|i: usize| from[i].load(Relaxed)))
    }

    pub fn store(&self, to: &[AtomicU32; 4]) {
        to.iter().zip(self.0).for_each(|(to, word)| to.store(word, Relaxed));
    }

    fn ip(&self) -> Place {
        Place::new(self.0[0])
    }

    fn transport(&self) -> Place {
        Place::new(self.0[1])
    }

    fn is_tcp(&self) -> bool {
        self.0[2] & tx::TUCMD_TCP != 0
    }

    fn is_v4(&self) -> bool {
        self.0[2] & tx::TUCMD_IP != 0
    }

    fn header_len(&self) -> usize {
        (self.0[3] >> 8 & 0xff) as usize
    }

    fn segment(&self) -> u16 {
        (self.0[3] >> 16) as u16
    }

    /// True if the context gives valid header positions for a frame of `len` bytes. Each header
    /// follows the one before, all lie within the copied bytes, and payload follows them.
    fn fits(&self, len: usize) -> bool {
        let (ip, transport, headers) = (self.ip(), self.transport(), self.header_len());
        let network = if self.is_v4() { 20 } else { 40 };
        let own = if self.is_tcp() { 20 } else { 8 };
        headers <= SEGMENT_HEADERS
            && headers < len
            && self.segment() > 0
            && ip.start + network <= transport.start
            && transport.start + own <= headers
            && transport.store >= transport.start
            && transport.store + 2 <= headers
    }

    /// The offload request of a frame with this `header`, which fits.
    fn offload(&self, header: &[u8; HEADER]) -> Offload {
        let transport = self.transport();
        let kind = match (self.is_tcp(), self.is_v4()) {
            (true, true) => Offload::GSO_TCP4,
            (true, false) => Offload::GSO_TCP6,
            (false, _) => Offload::GSO_UDP,
        };
        let reduced = self.is_tcp() && header[transport.start + 13] & CWR != 0;
        Offload {
            flags: Offload::NEEDS_CHECKSUM,
            gso_type: kind | if reduced { Offload::GSO_ECN } else { 0 },
            header_len: self.header_len() as u16,
            gso_size: self.segment(),
            checksum_start: transport.start as u16,
            checksum_offset: (transport.store - transport.start) as u16,
        }
    }
}

/// Where a checksum is computed, and where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: usize,
    store: usize,
    /// The last byte of the sum; 0 means the frame's last byte.
    last: usize,
}

impl Place {
    fn new(word: u32) -> Self {
        let byte = |at: u32| (word >> at & 0xff) as usize;
        Self { start: byte(0), store: byte(8), last: (word >> 16) as usize }
    }

    /// The bytes to sum of a frame of `len` bytes, if the place is valid for it.
    fn range(&self, len: usize) -> Option<std::ops::Range<usize>> {
        let end = if self.last == 0 { len } else { (self.last + 1).min(len) };
        (self.start < end && self.store + 2 <= len).then_some(self.start..end)
    }
}

/// The requests in the descriptors of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// A tag to insert: its ethertype (VET), then its content.
    tag: Option<[u8; TAG]>,
    /// An IP header checksum to insert.
    ip: Option<Place>,
    /// A checksum to insert over everything from its start on.
    transport: Option<Place>,
    /// UDP's checksum is never zero.
    udp: bool,
    /// True if the request itself says where TCP and UDP checksums are.
    modern: bool,
    segments: Option<Context>,
}

impl Request {
    /// Decodes the request. `first` and `last` are the second words of the frame's first and last
    /// descriptors. `contexts` were current at the frame's start: for checksums, and for
    /// segmentation. `vet` is the ethertype of tags, if tags are inserted.
    pub fn new(first: u64, last: u64, contexts: &[Context; 2], vet: Option<u16>) -> Self {
        let [c, d] = ((last >> 48) as u16).to_be_bytes();
        let tag = vet.filter(|_| last & tx::VLE != 0).map(|vet| {
            let [a, b] = vet.to_be_bytes();
            [a, b, c, d]
        });
        if first & tx::DEXT == 0 {
            let place = Place {
                start: (last >> 40 & 0xff) as usize,
                store: (last >> 16 & 0xff) as usize,
                last: 0,
            };
            let transport = (last & tx::IC != 0).then_some(place);
            return Self { tag, ip: None, transport, udp: false, modern: false, segments: None };
        }
        let context = &contexts[usize::from(first & tx::TSE != 0)];
        Self {
            tag,
            ip: (first & tx::IXSM != 0).then(|| context.ip()),
            transport: (first & tx::TXSM != 0).then(|| context.transport()),
            udp: !context.is_tcp(),
            modern: true,
            segments: (first & tx::TSE != 0).then_some(*context),
        }
    }
}

/// A frame as it goes to the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    /// The frame's first segment, if that is a private header.
    pub header: Option<Span>,
    /// Bytes of guest memory that the header replaces.
    pub replaces: usize,
    /// Bytes of the frame.
    pub len: usize,
    pub offload: Option<Offload>,
    /// How many frames the switch makes of this one, and the bytes of headers in each.
    pub segments: u32,
    pub header_len: u32,
    /// Bytes of the longest of these frames.
    pub longest: usize,
}

/// Private copies of headers, whose memory is reused for each batch.
#[derive(Debug)]
pub(super) struct Headers {
    memory: Option<Arc<Mapping>>,
    used: usize,
}

impl Headers {
    /// Allocates no memory until a header is used.
    pub fn new() -> Self {
        Self { memory: Mapping::private(HEADER * HEADERS).ok(), used: 0 }
    }

    /// Makes all headers free again: the frames of the previous batch are finished.
    pub fn reuse(&mut self) {
        self.used = 0;
    }

    /// Carries out the request of a frame in `pieces`, of `len` bytes in all.
    pub fn finish(&mut self, pieces: &[Bytes<'_>], len: usize, request: &Request) -> Finished {
        let plain = Finished {
            header: None,
            replaces: 0,
            len,
            offload: None,
            segments: 1,
            header_len: 0,
            longest: len,
        };
        let mut header = [0; HEADER];
        let done = match request.segments {
            Some(context) => rewrite_segments(&mut header, pieces, len, request, &context),
            None => Ok(rewrite(&mut header, pieces, len, request)),
        };
        let Ok(done) = done else {
            let offload = Some(Offload { gso_type: IMPOSSIBLE, ..Offload::NONE });
            return Finished { offload, ..plain };
        };
        let mut finished = Finished {
            offload: done.offload,
            segments: done.segments,
            header_len: done.header_len,
            longest: done.longest,
            ..plain
        };
        let mut used = done.copied;
        finished.replaces = used;
        if let Some(tag) = request.tag.filter(|_| len >= TAG_AT + 2) {
            if used == 0 {
                used = copy_out(pieces, &mut header[..TAG_AT]);
                finished.replaces = used;
            }
            put_tag(&mut header, used, tag);
            finished.offload = finished.offload.map(|offload| offload.shifted(TAG as i16));
            finished.len += TAG;
            finished.longest += TAG;
            used += TAG;
        }
        if used > 0 {
            let Some(span) = self.keep(&header[..used]) else { return plain };
            finished.header = Some(span);
        }
        finished
    }

    fn keep(&mut self, header: &[u8]) -> Option<Span> {
        let memory = self.memory.as_ref()?;
        let bytes = memory.bytes(HEADER * (self.used % HEADERS), header.len())?;
        self.used += 1;
        bytes.copy_in(header);
        Some(bytes.span())
    }

    /// Assembles a frame in private memory, with its checksums; false if that is impossible.
    pub fn assemble(
        &mut self,
        pieces: &[Bytes<'_>],
        len: usize,
        request: &Request,
        to: &mut Vec<u8>,
    ) -> bool {
        if request.segments.is_some() {
            return false;
        }
        let mut header = [0; HEADER];
        let done = rewrite(&mut header, pieces, len, request);
        to.resize(len, 0);
        copy_out(pieces, to);
        to[..done.copied].copy_from_slice(&header[..done.copied]);
        if let Some(offload) = done.offload {
            complete(to, offload.checksum_start, offload.checksum_offset);
        }
        if let Some(tag) = request.tag.filter(|_| len >= TAG_AT + 2) {
            to.splice(TAG_AT..TAG_AT, tag);
        }
        true
    }
}

/// Inserts a tag into a header of `used` bytes.
fn put_tag(header: &mut [u8; HEADER], used: usize, tag: [u8; TAG]) {
    header.copy_within(TAG_AT..used, TAG_AT + TAG);
    header[TAG_AT..TAG_AT + TAG].copy_from_slice(&tag);
}

/// What has been done to a frame so far.
struct Done {
    /// Bytes of the header that were copied, and perhaps rewritten.
    copied: usize,
    offload: Option<Offload>,
    segments: u32,
    header_len: u32,
    longest: usize,
}

/// Checksums of a frame that is not segmented.
fn rewrite(header: &mut [u8; HEADER], pieces: &[Bytes<'_>], len: usize, request: &Request) -> Done {
    let mut done = Done { copied: 0, offload: None, segments: 1, header_len: 0, longest: len };
    if let Some(place) = request.transport {
        match place.range(len) {
            // The switch or the receiver computes this checksum.
            Some(range) if request.modern && range.end == len && place.store >= place.start => {
                done.offload = Some(Offload {
                    flags: Offload::NEEDS_CHECKSUM,
                    checksum_start: place.start as u16,
                    checksum_offset: (place.store - place.start) as u16,
                    ..Offload::NONE
                });
            }
            Some(range) => sum_here(header, &mut done, pieces, &place, range, request.udp),
            None => {}
        }
    }
    if let Some((place, range)) = request.ip.and_then(|place| Some((place, place.range(len)?))) {
        sum_here(header, &mut done, pieces, &place, range, false);
    }
    done
}

/// Computes a checksum over guest memory and stores it in the private header, if the header reaches
/// that far.
fn sum_here(
    header: &mut [u8; HEADER],
    done: &mut Done,
    pieces: &[Bytes<'_>],
    place: &Place,
    range: std::ops::Range<usize>,
    never_zero: bool,
) {
    if place.store + 2 > COPIED {
        return;
    }
    if done.copied < place.store + 2 {
        // Bytes copied earlier may have been rewritten since, so only later bytes are taken over.
        let mut fresh = [0; COPIED];
        // The copy must also reach the place where a tag may be inserted.
        let least = (place.store + 2).max(TAG_AT);
        let wanted = if range.end <= COPIED { range.end.max(least) } else { least };
        let got = copy_out(pieces, &mut fresh[..wanted]);
        header[done.copied..got].copy_from_slice(&fresh[done.copied..got]);
        done.copied = got;
    }
    let private = header[..done.copied].get(range.start..range.end.min(done.copied));
    let mut sum = Sum::new().with(private.unwrap_or_default());
    let (mut at, mut left) = (0, range.start.max(done.copied)..range.end);
    for piece in pieces {
        let mut chunk = [0; 256];
        let mut rest = piece.suffix(left.start.saturating_sub(at));
        while !rest.is_empty() && !left.is_empty() {
            let n = rest.prefix(left.len()).copy_out(&mut chunk);
            sum = sum.with(&chunk[..n]);
            left.start += n;
            rest = rest.suffix(n);
        }
        at += piece.len();
    }
    let sum = match sum.checksum() {
        0 if never_zero => 0xffff,
        sum => sum,
    };
    if let Some(to) = header.get_mut(place.store..place.store + 2) {
        to.copy_from_slice(&sum.to_be_bytes());
    }
}

/// Rewrites the headers of a frame with segmentation as virtio wants them. Lengths are those of the
/// whole, and the transport checksum's seed includes its length. An error if the context makes no
/// sense for the frame.
fn rewrite_segments(
    header: &mut [u8; HEADER],
    pieces: &[Bytes<'_>],
    len: usize,
    request: &Request,
    context: &Context,
) -> Result<Done, ()> {
    let (headers, size) = (context.header_len(), usize::from(context.segment()));
    let fits = context.fits(len) && copy_out(pieces, &mut header[..headers]) == headers;
    let whole = u16::try_from(len.saturating_sub(context.ip().start)).map_err(|_| ())?;
    if !fits {
        return Err(());
    }
    write_lengths(header, request, context, whole);
    let payload = len - headers;
    Ok(Done {
        copied: headers,
        offload: Some(context.offload(header)),
        segments: payload.div_ceil(size) as u32,
        header_len: headers as u32,
        longest: headers + payload.min(size),
    })
}

/// Writes the length of the whole packet, `whole` bytes with its IP header, into the headers.
fn write_lengths(header: &mut [u8; HEADER], request: &Request, context: &Context, whole: u16) {
    let (ip, transport) = (context.ip(), context.transport());
    if context.is_v4() {
        put(header, ip.start + 2, whole);
        if request.ip.is_some() && ip.store >= ip.start && ip.store + 2 <= transport.start {
            put(header, ip.store, 0);
            let sum = frame::checksum::checksum(&header[ip.start..transport.start]);
            put(header, ip.store, sum);
        }
    } else {
        put(header, ip.start + 4, whole - 40);
    }
    let body = whole - (transport.start - ip.start) as u16;
    if !context.is_tcp() {
        put(header, transport.start + 4, body);
    }
    let seed = u16::from_be_bytes([header[transport.store], header[transport.store + 1]]);
    let sum = u32::from(seed) + u32::from(body);
    put(header, transport.store, (sum as u16).wrapping_add((sum >> 16) as u16));
}

fn put(header: &mut [u8; HEADER], at: usize, value: u16) {
    if let Some(to) = header.get_mut(at..at + 2) {
        to.copy_from_slice(&value.to_be_bytes());
    }
}

/// Copies the start of a frame out of its pieces. Returns how many bytes it copied.
fn copy_out(pieces: &[Bytes<'_>], to: &mut [u8]) -> usize {
    let mut done = 0;
    for piece in pieces {
        if done == to.len() {
            break;
        }
        done += piece.copy_out(&mut to[done..]);
    }
    done
}
