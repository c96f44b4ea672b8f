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

/// How the floor program is compiled.
const FLOOR_OPTIONS: [&str; 2] = ["-O3", "-march=native"];

/// Compiles the floor program.
pub fn compile_floor(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("forward");
    let mut cc = Command::new("cc");
    cc.args(FLOOR_OPTIONS).arg("-o").arg(&program).arg(dir.join("forward.c")).arg("-lpthread");
    let done = cc.output().context(Missing::new("cc", "apt-get install gcc libc6-dev"))?;
    if !done.status.success() {
        bail!("the floor does not compile: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// How many prefetches each function of a program has: all, and those to write.
    fn prefetches(disassembly: &str) -> BTreeMap<String, (u32, u32)> {
        let (mut all, mut function) = (BTreeMap::<String, (u32, u32)>::new(), String::new());
        for line in disassembly.lines() {
            if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once('<')) {
                name.clone_into(&mut function);
            }
            if line.contains("prefetch") {
                let counts = all.entry(function.clone()).or_default();
                counts.0 += 1;
                counts.1 += u32::from(line.contains("prefetchw"));
            }
        }
        all
    }

    /// gcc 12 removes calls of functions that only prefetch: the floor was slower than it may be.
    #[test]
    fn regression_the_compiled_floor_prefetches_as_toklat_does() {
        let test = "regression_the_compiled_floor_prefetches_as_toklat_does";
        if !cfg!(target_arch = "x86_64") {
            return harness::skip(test, "it looks for instructions of x86-64");
        }
        let dir = tempfile::tempdir().unwrap();
        unpack(dir.path()).unwrap();
        let program = match compile_floor(dir.path()) {
            Ok(program) => program,
            Err(why) if Missing::is(&why) => return harness::skip(test, &format!("{why:#}")),
            Err(why) => panic!("{why:#}"),
        };
        let mut objdump = Command::new("objdump");
        let Ok(shown) = objdump.args(["-d", "--no-show-raw-insn"]).arg(program).output() else {
            return harness::skip(test, "there is no objdump");
        };
        let counts = prefetches(&String::from_utf8_lossy(&shown.stdout));
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let to_write = u32::from(cpu.contains("3dnowprefetch"));
        // In the source: the client's slot and buffer; the frame, the next payload, the delivery's
        // slot and buffer; the frame, the table, three lines of a ring, its slot and buffer.
        for (function, least, written) in
            [("generate", 2, 2), ("forward", 4, 2), ("forward_to_many", 7, 4)]
        {
            let (all, for_writing) = counts.get(function).copied().unwrap_or_default();
            assert!(all >= least, "{function}: {counts:?}");
            assert!(for_writing >= written * to_write, "{function}: {counts:?}");
        }
    }
}
