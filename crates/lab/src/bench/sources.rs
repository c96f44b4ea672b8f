//! Sources and scripts of `bench/`, which are in this binary and unpacked where they run.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::hosts::programs::Missing;

/// Files of `bench/`, unpacked by [`unpack`].
const FILES: &[(&str, &str)] = &[
    ("forward.c", include_str!("programs/forward.c")),
    ("lib.sh", include_str!("programs/lib.sh")),
    ("ovs.sh", include_str!("programs/ovs.sh")),
    ("testpmd.sh", include_str!("programs/testpmd.sh")),
    ("front.sh", include_str!("programs/front.sh")),
    ("memif.sh", include_str!("programs/memif.sh")),
    ("udp.sh", include_str!("programs/udp.sh")),
    ("netmap.c", include_str!("programs/netmap.c")),
    ("nm.h", include_str!("programs/nm.h")),
    ("pcap.c", include_str!("programs/pcap.c")),
    ("rtt.c", include_str!("programs/rtt.c")),
    ("vx.c", include_str!("programs/vx.c")),
    ("udp.c", include_str!("programs/udp.c")),
    ("batch.py", include_str!("programs/batch.py")),
    ("xdp.c", include_str!("programs/xdp.c")),
];

/// Writes the files to `dir`.
pub fn unpack(dir: &Path) -> Result<()> {
    for (name, text) in FILES {
        let mut open = std::fs::OpenOptions::new();
        let mut file = open.create_new(true).write(true).mode(0o755).open(dir.join(name))?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Compiles the floor program.
pub fn compile_floor(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("forward");
    let mut cc = Command::new("cc");
    cc.args(["-O3", "-march=native", "-o"])
        .arg(&program)
        .arg(dir.join("forward.c"))
        .arg("-lpthread");
    let done = cc.output().context(Missing::new("cc", "apt-get install gcc libc6-dev"))?;
    if !done.status.success() {
        bail!("the floor does not compile: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(program)
}
