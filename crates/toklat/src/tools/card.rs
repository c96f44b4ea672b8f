//! `toklat card`: drives a network card of this machine from this process, and exchanges frames
//! with a peer that answers requests of [`super::roundtrip`].

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use card::vfio::Card;
use card::{Given, Model, Nic};
use driver::Dma;
use frame::{ETHERNET_HEADER, Mac};
use rustix::event::{PollFd, PollFlags, Timespec};
use shmem::{Memfd, Pages};

use super::ping::SERVER_MAC;
use super::roundtrip::{MIN_PAYLOAD, answer, reply_number, write_request};
use super::session;
use client::Global;
use client::table::pps;
use client::units;

/// Bytes of a driver's memory, and its address on the bus. The address is low enough for all cards,
/// and lets an IOMMU map huge pages in one piece.
const MEMORY: usize = 4 << 20;
const AT: u64 = 2 << 20;
/// The most requests in flight at a time.
const WINDOW: usize = 32;
/// Time limits for the link and the peer to come up, the pause between attempts, and the time limit
/// for replies. The peer may share its processors with other work.
const ANSWER: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(100);
const REPLY: Duration = Duration::from_secs(5);
/// The number of requests that only test whether the peer answers.
const TRIED: u64 = u64::MAX;

/// Options of `toklat card`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "toklat ping --server vale0:b      who answers, behind a port to the other end of the cable\n\
    toklat card 0000:03:00.0          requests through the card\n\n\
    Cards: Intel 82540EM and 82574L, AMD PCnet (Am79C970A and later). The card's driver has to be vfio-pci, \
    and an IOMMU is needed: it is shown the memory of this process's driver, and no other."
)]
pub struct CardArgs {
    /// The card's PCI address, such as 0000:03:00.0
    address: String,
    /// The MAC address of the peer that answers
    #[arg(long, default_value_t = SERVER_MAC, value_name = "MAC")]
    to: Mac,
    /// Frames to send
    #[arg(short = 'n', long, default_value = "1000", value_parser = units::count, value_name = "N")]
    count: u64,
    /// Bytes of each frame, without its check sequence
    #[arg(short, long, default_value_t = 60, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(60..=1514))]
    size: u16,
    /// Wait for the card's interrupts instead of polling
    #[arg(long)]
    interrupts: bool,
}

/// The result of an exchange with a peer.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Report {
    /// The card's model, and its address.
    pub card: String,
    /// The card's station address.
    pub mac: String,
    /// Requests sent.
    pub sent: u64,
    /// Correct replies.
    pub received: u64,
    /// Requests that got no reply.
    pub lost: u64,
    /// Replies with wrong bytes, or that answer no request.
    pub wrong: u64,
    /// Time from the first request to the last reply.
    pub seconds: f64,
    /// Requests and replies per second.
    pub pps: f64,
    /// Interrupts.
    pub interrupts: u64,
    /// Register reads and writes, without those of the set-up.
    pub reads: u64,
    /// Likewise.
    pub writes: u64,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { card, sent, received, lost, wrong, seconds, interrupts, reads, writes, .. } =
            self;
        write!(
            f,
            "{card}: {sent} sent, {received} received, {lost} lost, {wrong} wrong in {seconds:.3} s, {}; \
             {interrupts} interrupts, {reads} register reads, {writes} writes",
            pps(self.pps)
        )
    }
}

/// Brings a card up. Returns its model's name, its driver, and its interrupts if they are wanted.
fn bring_up(mut card: Card, interrupts: bool) -> anyhow::Result<(&'static str, Nic, Vec<OwnedFd>)> {
    let memory = Memfd::create("card", MEMORY, Pages::HugeIfFree)?.map()?;
    card.map(&memory, AT)?;
    let mut dma = Dma::new(memory, 0, MEMORY, AT).context("the memory is mapped")?;
    let model = Model::of(&card)?;
    let given = Given { interrupts, ..Given::default() };
    let (nic, calls) = Nic::bring_up(card, &mut dma, given)?;
    Ok((model.name, nic, calls))
}

/// Requests through a card.
struct Exchange<'a> {
    args: &'a CardArgs,
    nic: Nic,
    /// The card's interrupts, if they are used.
    calls: Vec<OwnedFd>,
    mac: Mac,
    /// Requests that wait for their replies.
    waiting: BTreeSet<u64>,
    report: Report,
}

impl Exchange<'_> {
    /// A request, and its reply.
    fn frames(&self, number: u64) -> (Vec<u8>, Vec<u8>) {
        let mut request = vec![0; self.args.size.into()];
        write_request(self.args.to, self.mac, number, &mut request);
        let rest = request.iter_mut().skip(ETHERNET_HEADER + MIN_PAYLOAD);
        let filling = (0..).map(|i| number.wrapping_add(i));
        rest.zip(filling).for_each(|(byte, n)| *byte = (n ^ n >> 8) as u8);
        let mut reply = request.clone();
        answer(self.args.to, &mut reply);
        (request, reply)
    }

    /// Takes received frames, at most for the time `most`. Waits for the card's interrupt first, if
    /// interrupts are used.
    fn look(&mut self, most: Duration) -> anyhow::Result<()> {
        let mut frames = Vec::new();
        let mut visit = |frame: &[u8]| frames.push(frame.to_vec());
        if self.calls.is_empty() {
            self.nic.receive(&mut visit);
        } else {
            match raised(&self.calls, most)? {
                0 => {}
                vectors => {
                    self.nic.interrupted(vectors);
                    self.nic.receive(&mut visit);
                    self.nic.listen(self.calls.len())?;
                }
            }
        }
        for frame in frames {
            let Some(number) = reply_number(self.mac, &frame) else { continue };
            let waited = self.waiting.remove(&number);
            if waited && frame == self.frames(number).1 {
                self.report.received += u64::from(number != TRIED);
            } else if number != TRIED {
                self.report.wrong += 1;
            }
        }
        Ok(())
    }

    /// Sends requests until the peer answers one.
    fn wait_for_peer(&mut self, goes_on: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut next = Duration::ZERO;
        self.waiting.insert(TRIED);
        while !self.waiting.is_empty() {
            ensure!(goes_on(), "Interrupted");
            ensure!(
                start.elapsed() < ANSWER,
                "Nobody answers at {}; is the cable plugged in, and does toklat ping --server run?",
                self.args.to
            );
            if start.elapsed() >= next {
                let (request, _) = self.frames(TRIED);
                self.nic.send(&request);
                self.nic.flush();
                next = start.elapsed() + AGAIN;
            }
            self.look(AGAIN)?;
        }
        Ok(())
    }

    /// Sends all requests, and waits for their replies.
    fn run(&mut self, goes_on: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let (before, start) = (self.nic.counts(), Instant::now());
        let mut moved = start;
        while goes_on() && (self.report.sent < self.args.count || !self.waiting.is_empty()) {
            let first = self.report.sent;
            while self.report.sent < self.args.count && self.waiting.len() < WINDOW {
                let number = self.report.sent;
                if !self.nic.send(&self.frames(number).0) {
                    break;
                }
                self.waiting.insert(number);
                self.report.sent += 1;
            }
            if self.report.sent > first {
                self.nic.flush();
            }
            let before = self.report.received;
            self.look(AGAIN)?;
            let now = Instant::now();
            if self.report.received > before {
                moved = now;
                self.report.seconds = (now - start).as_secs_f64();
            } else if now - moved > REPLY {
                self.waiting.clear();
                moved = now;
            }
        }
        let report = &mut self.report;
        report.lost = report.sent - report.received;
        report.pps =
            if report.seconds > 0.0 { report.received as f64 / report.seconds } else { 0.0 };
        let after = self.nic.counts();
        let [interrupts, reads, writes] = [0, 1, 2].map(|i| after[i] - before[i]);
        (report.interrupts, report.reads, report.writes) = (interrupts, reads, writes);
        Ok(())
    }
}

/// Waits for interrupts; returns their vectors, a bit each.
fn raised(calls: &[OwnedFd], most: Duration) -> anyhow::Result<u32> {
    let mut fds: Vec<_> = calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
    match rustix::event::poll(&mut fds, Some(&Timespec::try_from(most)?)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error).context("Waiting for interrupts failed"),
    }
    let came = |call: &OwnedFd| rustix::io::read(call, &mut [0; 8]).is_ok();
    Ok(calls.iter().enumerate().map(|(vector, call)| u32::from(came(call)) << vector).sum())
}

/// Runs `toklat card`.
///
/// # Errors
/// If the card cannot be opened or brought up, no peer answers, or a frame was lost or changed.
pub fn run(args: &CardArgs, global: &Global) -> anyhow::Result<()> {
    shmem::guard::install();
    let stop = session::stop_on_signals()?;
    let goes_on = || !stop.load(Ordering::Relaxed);
    let (name, nic, calls) = bring_up(Card::open(&args.address)?, args.interrupts)?;
    let mac = nic.mac();
    let report = Report {
        card: format!("{name} at {}", args.address),
        mac: mac.to_string(),
        ..Report::default()
    };
    let mut exchange = Exchange { args, nic, calls, mac, waiting: BTreeSet::new(), report };
    let done = exchange.wait_for_peer(&goes_on).and_then(|()| exchange.run(&goes_on));
    exchange.nic.stop();
    done?;
    let report = exchange.report;
    global.print_done(&report, &report.to_string())?;
    ensure!(report.lost == 0 && report.wrong == 0, "Frames were lost or changed");
    Ok(())
}
