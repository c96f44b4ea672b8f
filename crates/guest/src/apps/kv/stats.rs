//! What `stats` tells: the names that memcached's exporters and tools read.

use std::fmt::Write as _;

use tcp::Nanos;

use super::commands::VERSION;
use super::{ERROR, Kv, MAX_KEY, MAX_VALUE, Stored};

/// Hits and misses.
type Found = [u64; 2];

/// What has been counted since the start.
#[derive(Debug, Default)]
pub struct Counts {
    connections: u64,
    total_connections: u64,
    touches: Found,
    touch_commands: u64,
    deletes: Found,
    ups: Found,
    downs: Found,
    sets: u64,
    /// Of stores with a version: hits, misses, and wrong versions.
    versions: [u64; 3],
    flushes: u64,
    metas: u64,
    too_large: u64,
    no_memory: u64,
    read: u64,
    written: u64,
}

fn count(found: &mut Found, hit: bool) {
    found[usize::from(!hit)] += 1;
}

impl Counts {
    pub fn connected(&mut self) {
        self.connections += 1;
        self.total_connections += 1;
    }

    pub fn disconnected(&mut self) {
        self.connections = self.connections.saturating_sub(1);
    }

    pub fn touched(&mut self, is_touch: bool, hit: bool) {
        if is_touch {
            self.touch_commands += 1;
            count(&mut self.touches, hit);
        }
    }

    pub fn deleted(&mut self, hit: bool) {
        count(&mut self.deletes, hit);
    }

    pub fn counted(&mut self, up: bool, hit: bool) {
        count(if up { &mut self.ups } else { &mut self.downs }, hit);
    }

    pub fn stored(&mut self, stored: Stored, is_versioned: bool) {
        self.sets += 1;
        match stored {
            Stored::TooLarge => self.too_large += 1,
            Stored::NoMemory => self.no_memory += 1,
            Stored::Yes if is_versioned => self.versions[0] += 1,
            Stored::NotFound => self.versions[1] += 1,
            Stored::Exists => self.versions[2] += 1,
            _ => {}
        }
    }

    pub fn flushed(&mut self) {
        self.flushes += 1;
    }

    pub fn meta(&mut self) {
        self.metas += 1;
    }

    /// Bytes that were read and sent.
    pub fn moved(&mut self, read: usize, sent: usize) {
        self.read += read as u64;
        self.written += sent as u64;
    }
}

impl Kv {
    /// Answers `stats`, or `stats` of a kind.
    pub(super) fn stats(&mut self, kind: &[u8], now: Nanos) -> String {
        match kind {
            b"" => self.all(now),
            b"settings" => self.settings(),
            b"reset" => {
                let Counts { connections, total_connections, .. } = self.counts;
                self.counts = Counts { connections, total_connections, ..Counts::default() };
                self.hits = (0, 0);
                "RESET\r\n".into()
            }
            b"sizes" => "STAT sizes_status disabled\r\nEND\r\n".into(),
            // There are no slabs.
            b"items" | b"slabs" | b"conns" => "END\r\n".into(),
            _ => ERROR.into(),
        }
    }

    fn all(&self, now: Nanos) -> String {
        let seconds = self.seconds(now);
        let uptime = seconds - self.started.unwrap_or(seconds);
        let mut text = String::new();
        let _ = write!(text, "STAT pid 1\r\nSTAT uptime {uptime}\r\nSTAT time {seconds}\r\n");
        let _ = write!(text, "STAT version {VERSION}\r\nSTAT pointer_size 64\r\n");
        text += "STAT rusage_user 0.000000\r\nSTAT rusage_system 0.000000\r\n";
        for (name, value) in self.of_commands().into_iter().chain(self.of_items()) {
            let _ = write!(text, "STAT {name} {value}\r\n");
        }
        text + "END\r\n"
    }

    fn of_commands(&self) -> Vec<(&'static str, u64)> {
        let (counts, ends) = (&self.counts, &self.items.ends);
        let [up, down] = [counts.ups, counts.downs];
        vec![
            ("curr_connections", counts.connections),
            ("total_connections", counts.total_connections),
            ("rejected_connections", 0),
            ("connection_structures", counts.connections),
            ("cmd_get", self.hits.0 + self.hits.1),
            ("cmd_set", counts.sets),
            ("cmd_flush", counts.flushes),
            ("cmd_touch", counts.touch_commands),
            ("cmd_meta", counts.metas),
            ("get_hits", self.hits.0),
            ("get_misses", self.hits.1),
            ("get_expired", ends.expired),
            ("delete_misses", counts.deletes[1]),
            ("delete_hits", counts.deletes[0]),
            ("incr_misses", up[1]),
            ("incr_hits", up[0]),
            ("decr_misses", down[1]),
            ("decr_hits", down[0]),
            ("cas_misses", counts.versions[1]),
            ("cas_hits", counts.versions[0]),
            ("cas_badval", counts.versions[2]),
            ("touch_hits", counts.touches[0]),
            ("touch_misses", counts.touches[1]),
            ("store_too_large", counts.too_large),
            ("store_no_memory", counts.no_memory),
        ]
    }

    fn of_items(&self) -> Vec<(&'static str, u64)> {
        let (counts, ends) = (&self.counts, &self.items.ends);
        let (items, bytes) = self.items.usage();
        vec![
            ("bytes_read", counts.read),
            ("bytes_written", counts.written),
            ("limit_maxbytes", self.items.most() as u64),
            ("accepting_conns", 1),
            ("listen_disabled_num", 0),
            ("threads", 1),
            ("conn_yields", 0),
            ("hash_power_level", 0),
            ("hash_bytes", 0),
            ("hash_is_expanding", 0),
            ("bytes", bytes as u64),
            ("curr_items", items as u64),
            ("total_items", ends.made),
            ("unfinished", self.unfinished.len() as u64),
            ("bytes_held", self.items.held() as u64),
            ("expired_unfetched", ends.expired_unfetched),
            ("evicted_unfetched", ends.evicted_unfetched),
            ("evictions", ends.evictions),
            ("reclaimed", ends.expired),
        ]
    }

    fn settings(&self) -> String {
        format!(
            "STAT maxbytes {}\r\nSTAT evictions on\r\nSTAT num_threads 1\r\nSTAT cas_enabled yes\r\n\
             STAT item_size_max {MAX_VALUE}\r\nSTAT key_size_max {MAX_KEY}\r\n\
             STAT binding_protocol ascii\r\nEND\r\n",
            self.items.most()
        )
    }
}
