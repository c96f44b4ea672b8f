//! The Linux driver `guest-driver/linux`, built for the test guest's kernel against Debian's
//! headers.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::debian::{self, Apt};
use crate::tool::{self, command};

/// The module.
pub const NAME: &str = "toklat_e1000";
/// The driver's sources. It is rebuilt when one of them changes.
pub const SOURCES: [(&str, &str); 11] = [
    ("Kbuild", include_str!("../../../guest-driver/linux/Kbuild")),
    ("csb.c", include_str!("../../../guest-driver/linux/csb.c")),
    ("csb.h", include_str!("../../../guest-driver/linux/csb.h")),
    ("ethtool.c", include_str!("../../../guest-driver/linux/ethtool.c")),
    ("hw.c", include_str!("../../../guest-driver/linux/hw.c")),
    ("main.c", include_str!("../../../guest-driver/linux/main.c")),
    ("receive.c", include_str!("../../../guest-driver/linux/receive.c")),
    ("regs.h", include_str!("../../../guest-driver/linux/regs.h")),
    ("send.c", include_str!("../../../guest-driver/linux/send.c")),
    ("toklat_e1000.h", include_str!("../../../guest-driver/linux/toklat_e1000.h")),
    ("driver.rs", include_str!("driver.rs")),
];
/// Packages that those with headers depend on and that are taken: the kernel's own tools, and
/// libraries of theirs that are seldom installed.
const HEADERS: [&str; 5] = ["linux-headers-", "linux-kbuild-", "libelf", "libzstd", "zlib1g"];

/// Builds it in `target` for this release of the kernel, such as `6.1.0-56-amd64`; packages are
/// kept in `packages`.
pub fn build(apt: &Apt, target: &Path, packages: &Path, release: &str) -> Result<Vec<u8>> {
    let compiler = compiler()?;
    debian::tools(&["make"])?;
    let root = target.join("headers");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let name = format!("linux-headers-{release}");
    for package in debian::fetch(apt, packages, &[&name], &HEADERS)? {
        debian::unpack(&package, &root)?;
    }
    let headers = root.join("usr/src").join(name);
    localize_includes(&headers.join("Makefile"), &root)?;
    let sources = target.join("driver");
    fs::create_dir_all(&sources)?;
    for (name, content) in SOURCES {
        fs::write(sources.join(name), content)?;
    }
    let libraries = ["lib", "usr/lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
    // Types for BPF would need one more tool.
    let mut make = command("make", &["-s", compiler, "CONFIG_DEBUG_INFO_BTF_MODULES="]);
    make.env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
    make.arg("-C").arg(&headers).arg(format!("M={}", sources.display())).arg("modules");
    tool::run(&mut make)?;
    let module = sources.join(NAME).with_extension("ko");
    // Debugging information is most of the module, and takes time to load.
    let _ = tool::succeeds(command("strip", &["--strip-debug"]).arg(&module));
    let module = fs::read(module)?;
    for dir in [root, sources] {
        fs::remove_dir_all(dir)?;
    }
    Ok(module)
}

/// The kernel's own compiler if it is here: its makefiles name that. Any other will do, too.
fn compiler() -> Result<&'static str> {
    ["gcc-12", "gcc"]
        .into_iter()
        .find(|compiler| tool::installed(compiler))
        .map(|compiler| if compiler == "gcc" { "CC=gcc" } else { "CC=gcc-12" })
        .context("gcc is missing")
}

/// Headers name each other by where they would be installed.
fn localize_includes(makefile: &Path, root: &Path) -> Result<()> {
    let text = fs::read_to_string(makefile).with_context(|| makefile.display().to_string())?;
    let source = root.join("usr/src");
    if source.to_str().is_none_or(|path| path.contains([' ', ':'])) {
        bail!("kernels cannot be built in {}", source.display());
    }
    Ok(fs::write(makefile, text.replace("/usr/src/", &format!("{}/", source.display())))?)
}
