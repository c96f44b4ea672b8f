//! Installs the library for programs in C: `cargo xtask capi [--prefix DIR] [--dev]`.
//!
//! The shared library is linked here from the static one, as rustc passes the linker a version
//! script without versions and linkers refuse a second one. `crates/capi/toklat.map` lists what it
//! exports.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::tool;

/// The version of the binary interface, in the soname: raised when a program must be built again.
const ABI: &str = "0";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The system's libraries that Rust's standard library needs.
const PRIVATE: &[&str] = &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

pub fn run(args: &[&str]) -> Result<()> {
    let (mut prefix, mut dev) = ("/usr/local", false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--dev" => dev = true,
            "--prefix" => prefix = args.next().context("--prefix needs a directory")?,
            other => {
                bail!("`{other}` is not known; usage: cargo xtask capi [--prefix DIR] [--dev]")
            }
        }
    }
    let prefix = std::path::absolute(prefix)?;
    let (profile, folder) = if dev { ("dev", "debug") } else { ("release", "release") };
    tool::run(&mut tool::cargo(&["build", "--package=toklat-capi", "--profile", profile]))?;
    let archive = tool::target().join(folder).join("libtoklat.a");
    install(&archive, &prefix, dev)?;
    println!("Installed in {}", prefix.display());
    Ok(())
}

/// Installs what the archive has under `prefix`.
pub fn install(archive: &Path, prefix: &Path, dev: bool) -> Result<()> {
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    for folder in [&lib.join("pkgconfig"), &include] {
        fs::create_dir_all(folder).with_context(|| {
            format!("Cannot make {}; choose another place with --prefix DIR", folder.display())
        })?;
    }
    copy(archive, &lib.join("libtoklat.a"))?;
    copy(&tool::root().join("crates/capi/include/toklat.h"), &include.join("toklat.h"))?;
    let page = lib.join("pkgconfig/toklat.pc");
    fs::write(&page, pkg_config(prefix))
        .with_context(|| format!("Cannot write {}", page.display()))?;
    let soname = format!("libtoklat.so.{ABI}");
    let library = format!("libtoklat.so.{VERSION}");
    link(archive, &lib.join(&library), &soname, dev)?;
    for (name, to) in [(soname.as_str(), library.as_str()), ("libtoklat.so", &soname)] {
        let _ = fs::remove_file(lib.join(name));
        symlink(to, lib.join(name)).with_context(|| format!("Cannot make the link {name}"))?;
    }
    Ok(())
}

/// Links what `toklat.map` names, and what that needs, into a shared library.
fn link(archive: &Path, library: &Path, soname: &str, dev: bool) -> Result<()> {
    let map = tool::root().join("crates/capi/toklat.map");
    let mut cc = tool::command(
        "cc",
        &["-shared", "-Wl,--gc-sections", "-Wl,-z,relro,-z,now", "-Wl,-z,defs"],
    );
    cc.arg(format!("-Wl,-soname,{soname}"));
    cc.arg(format!("-Wl,--version-script={}", map.display()));
    // Nothing else asks the archive for its members.
    cc.args(exported(&map)?.iter().map(|name| format!("-Wl,-u,{name}")));
    if !dev {
        cc.arg("-Wl,--strip-debug");
    }
    cc.arg(archive).args(PRIVATE).arg("-o").arg(library);
    let done = cc.status().context("`cc` could not be started; install gcc")?;
    if !done.success() {
        bail!("`cc` could not link {} ({done})", library.display());
    }
    Ok(())
}

/// The functions in a version script: `toklat_open;` on its own line.
fn exported(map: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(map).with_context(|| map.display().to_string())?;
    let names = text.lines().filter_map(|line| line.trim().strip_suffix(';'));
    Ok(names.filter(|name| name.starts_with("toklat_")).map(str::to_owned).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("Cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
         Name: toklat\nDescription: Ports of toklat's switches, for programs in C\nVersion: {VERSION}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -ltoklat\nLibs.private: {}\n",
        prefix.display(),
        PRIVATE.join(" ")
    )
}
