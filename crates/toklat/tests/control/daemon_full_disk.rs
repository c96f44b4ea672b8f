//! A port that writes a file onto a disk that becomes full.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Daemon, skip, text};
use toklat::tools::pcap;

/// A small file system.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new(size: &str) -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        disk.mount(&format!("size={size}")).then_some(disk)
    }

    fn mount(&self, options: &str) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.0.path());
        mount.output().is_ok_and(|output| output.status.success())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("out.pcapng")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

/// The number of sections and of frames in a file; `None` if it ends in the middle of a block.
fn contents(file: &Path) -> Option<(usize, u64)> {
    let bytes = std::fs::read(file).unwrap();
    let recording = pcap::read(&bytes[..]).unwrap();
    let magic = 0x0a0d_0d0a_u32.to_ne_bytes();
    let sections = bytes.chunks_exact(4).filter(|word| *word == magic).count();
    recording.left_out().is_nothing().then_some((sections, recording.len() as u64))
}

#[test]
fn a_full_disk_fails_the_port_and_its_file_ends_at_a_frame() {
    let name = "a_full_disk_fails_the_port_and_its_file_ends_at_a_frame";
    let Some(disk) = Disk::new("256k") else {
        return skip(name, "only root may mount a small file system");
    };
    let file = disk.file();
    let mut daemon = Daemon::start();
    daemon.apply("[switch.vale0]");
    daemon.done(&["port", "add", "vale0:log", "--pcap-write", file.to_str().unwrap()]);
    let send = |daemon: &Daemon, count: &str| {
        daemon.done(&["gen", "vale0:a", "--size", "1001", "--count", count]);
    };
    send(&daemon, "1000");
    daemon.wait_for("the port to fail", |daemon| {
        daemon.ports("vale0").contains(&("log".into(), "failed".into()))
    });
    let port = daemon.get("/v1/switches/vale0/ports/log");
    let why = text(&port["failure"]);
    assert!(why.contains("No space left") && why.contains(file.to_str().unwrap()), "{why}");
    assert!(daemon.done(&["port", "show", "vale0:log"]).contains("No space left"));
    let (sections, frames) = contents(&file).expect("whole blocks");
    assert!(sections == 1 && frames > 100, "{frames}");
    daemon.wait_for("its frames to be counted", |daemon| {
        daemon.counters("log")["out_frames"] == frames
    });
    // When there is room again, the port continues where the file ends.
    assert!(disk.mount("remount,size=16m"));
    daemon.done(&["upgrade", "vale0"]);
    assert!(daemon.ports("vale0").contains(&("log".into(), "attached".into())));
    send(&daemon, "10");
    daemon.wait_for("ten frames more", |_| contents(&file) == Some((2, frames + 10)));
}
