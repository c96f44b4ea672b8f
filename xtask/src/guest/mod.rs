//! The test guest: a Debian kernel and an initramfs with busybox (ping), iperf3, ethtool, packet
//! generators and our own driver, made as an ordinary user into `target/guest`.
//!
//! `apt-get download` fetches the packages (where apt has no lists of its own, with lists in
//! `target/guest/apt`), `dpkg-deb` unpacks them, and what the guest needs of them goes into an
//! archive. Nothing is installed. [`dpdk`] and [`newer`] are the same
//! guest with one more archive.

mod cpio;
mod dpdk;
mod driver;
mod newer;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use self::cpio::Archive;
use crate::debian::{self, Apt, find};
use crate::tool::{self, command};

/// The packages to fetch, with the libraries that they depend on.
const PACKAGES: [&str; 4] = ["linux-image-amd64", "busybox-static", "iperf3", "ethtool"];
/// Packages that those depend on are taken if their names begin like this: the rest is for
/// installing.
const DEPENDENCIES: [&str; 2] = ["lib", "linux-image-"];
/// Drivers, with what `modinfo` says they depend on.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "virtio_net",
    "e1000",
    "e1000e",
    "pcnet32",
    "pktgen",
    "8021q",
    "vfio_iommu_type1",
    "vfio_pci",
];
const INIT: &str = include_str!("../../guest/init");
const PKT: &str = include_str!("../../guest/pkt.c");
const PKTGEN: &str = include_str!("../../guest/pktgen");
const VLAN: &str = include_str!("../../guest/vlan");
const VFIO: &str = include_str!("../../guest/vfio");
/// The beginning of the name of the kernel's file; the release follows.
const KERNEL: &str = "vmlinuz-";
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Makes it, unless it is there and as this program would make it; and those with DPDK or a
/// newer kernel, which most tests do without.
pub fn make() -> Result<()> {
    let target = tool::target().join("guest");
    let recipe = recipe();
    if is_made(&target, &recipe) {
        println!("the test guest is there: {}", target.display());
    } else {
        build(&target)?;
        fs::write(target.join("recipe"), &recipe)?;
        println!("the test guest is made: {}", target.display());
    }
    if let Err(error) = dpdk::make(&target, &recipe) {
        println!("skipped: the test guest with DPDK ({error:#}); tests of it skip themselves");
    }
    if let Err(error) = newer::make(&target, &recipe) {
        println!(
            "skipped: the test guest with a newer kernel ({error:#}); its tests skip themselves"
        );
    }
    Ok(())
}

/// True if a guest is in `dir`, and was made by this recipe.
fn is_made(dir: &Path, recipe: &str) -> bool {
    fs::read_to_string(dir.join("recipe")).is_ok_and(|made_by| made_by == recipe)
        && ["kernel", "initramfs"].iter().all(|name| dir.join(name).is_file())
}

fn build(target: &Path) -> Result<()> {
    debian::tools(&["apt-get", "dpkg-deb", "cc"])?;
    let packages = target.join("packages");
    fs::create_dir_all(&packages)?;
    let apt = apt(target);
    let fetched = debian::fetch(&apt, &packages, &PACKAGES, &DEPENDENCIES)?;
    let root = unpacked(target, &fetched)?;
    let kernel = find(&root.join("boot"), KERNEL)?;
    let compressed = fs::read(&kernel)?;
    fs::write(target.join("kernel"), uncompressed(&compressed).unwrap_or(compressed))?;
    let release = kernel.file_name().unwrap_or_default().to_string_lossy();
    let release = release.trim_start_matches(KERNEL);
    let module = driver::build(&apt, target, &packages, release).map_err(|error| {
        println!("skipped: the driver {} ({error:#}); tests of it skip themselves", driver::NAME);
    });
    // This file lies next to the guest, so that others can check whether the guest has the module.
    let beside = target.join(driver::NAME).with_extension("ko");
    match &module {
        Ok(module) => fs::write(beside, module)?,
        Err(()) => _ = fs::remove_file(beside),
    }
    let initramfs = initramfs(&root, &compile(target)?, module.as_deref().ok())?;
    fs::write(target.join("initramfs"), initramfs)?;
    // The one with DPDK has modules of the kernel that was there, and both have its initramfs.
    [dpdk::NAME, newer::NAME].iter().for_each(|name| _ = fs::remove_dir_all(target.join(name)));
    Ok(fs::remove_dir_all(&root)?)
}

fn apt(target: &Path) -> Apt {
    Apt::of_this_machine(target.join("apt"))
}

/// A tree made of these packages alone.
fn unpacked(target: &Path, packages: &[PathBuf]) -> Result<PathBuf> {
    let root = target.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for package in packages {
        debian::unpack(package, &root)?;
    }
    Ok(root)
}

/// Returns everything on which the guest's contents depend.
fn recipe() -> String {
    let own = [INIT, PKT, PKTGEN, VLAN, VFIO, include_str!("mod.rs"), include_str!("cpio.rs")];
    let others = [include_str!("../debian.rs")].into_iter();
    own.into_iter().chain(others).chain(driver::SOURCES.map(|(_, content)| content)).collect()
}

fn quiet(program: &str, args: &[&Path]) -> Command {
    let mut command = command(program, &[]);
    command.args(args);
    command
}

/// The kernel as the ELF file that a `vmlinuz` unpacks itself to. QEMU boots that too, and without
/// KVM the unpacking takes longer than all the rest. `None` if the tool to unpack it is missing, or
/// the compression is another.
fn uncompressed(vmlinuz: &[u8]) -> Option<Vec<u8>> {
    const XZ: &[u8] = b"\xfd7zXZ\0";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
    for (magic, unpack) in [(XZ, ["xz", "-dcq", "--single-stream"]), (ZSTD, ["zstd", "-dcq", "-"])]
    {
        let Some(at) = vmlinuz.windows(magic.len()).position(|window| window == magic) else {
            continue;
        };
        let mut unpack = command(unpack[0], &unpack[1..]);
        let unpack = unpack.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = unpack.spawn() else { continue };
        let (mut stdin, rest) = (child.stdin.take()?, vmlinuz[at..].to_vec());
        // The program stops reading where the stream ends: what follows is the kernel's own.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&rest)));
        let unpacked = child.wait_with_output().ok()?.stdout;
        let _ = feeder.join();
        if unpacked.starts_with(b"\x7fELF") {
            return Some(unpacked);
        }
    }
    None
}

/// The packet generator, linked statically.
fn compile(target: &Path) -> Result<Vec<u8>> {
    let program = target.join("pkt");
    let source = tool::root().join("xtask/guest/pkt.c");
    tool::run(&mut quiet(
        "cc",
        &["-O2".as_ref(), "-static".as_ref(), "-o".as_ref(), &program, &source],
    ))?;
    fs::read(&program).context("the packet generator")
}

fn initramfs(root: &Path, pkt: &[u8], driver: Option<&[u8]>) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["bin", "dev", "lib", "lib64", "lib/modules"] {
        archive.directory(dir);
    }
    archive.device("dev/console", (5, 1));
    archive.file("init", INIT.as_bytes());
    archive.file("bin/pkt", pkt);
    archive.file("bin/pktgen", PKTGEN.as_bytes());
    archive.file("bin/vlan", VLAN.as_bytes());
    archive.file("bin/vfio", VFIO.as_bytes());
    archive.file("bin/busybox", &fs::read(first(root, &["bin/busybox", "usr/bin/busybox"])?)?);
    archive.file("bin/iperf3", &fs::read(root.join("usr/bin/iperf3"))?);
    let ethtool = first(root, &["usr/sbin/ethtool", "sbin/ethtool"])?;
    archive.file("bin/ethtool", &fs::read(ethtool)?);
    let mut order = String::new();
    // Ours depends on no other, and stays out unless it is asked for.
    let ours = driver.map(|module| (format!("{}.ko", driver::NAME), module.to_vec()));
    for (name, module) in ours.into_iter().chain(modules(root, &MODULES)?) {
        archive.file(&format!("lib/modules/{name}"), &module);
        order += &format!("{name}\n");
    }
    archive.file("lib/modules/order", order.as_bytes());
    for dir in ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"] {
        libraries(&root.join(dir), &mut archive)?;
    }
    Ok(archive.finish())
}

fn first(root: &Path, paths: &[&str]) -> Result<PathBuf> {
    let found = paths.iter().map(|path| root.join(path)).find(|path| path.is_file());
    found.with_context(|| format!("{} is missing in the packages", paths[0]))
}

/// Libraries under the names by which programs ask for them, all in one directory.
fn libraries(dir: &Path, archive: &mut Archive) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // As in libssl.so.3 and libiperf.so.0, but not the libiperf.so.0.0.0 behind it.
        let is_library =
            name.split_once(".so.").is_some_and(|(_, version)| version.parse::<u32>().is_ok());
        if name == LOADER {
            archive.file(&format!("lib64/{LOADER}"), &fs::read(entry.path())?);
        } else if is_library {
            archive.file(&format!("lib/{name}"), &fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Drivers in the order in which they are loaded.
fn modules(root: &Path, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let modules = first_directory(root, &["lib/modules", "usr/lib/modules"])?;
    let mut files = Vec::new();
    walk(&modules, &mut files)?;
    let mut ordered = Vec::new();
    for name in names {
        load(name, &files, &mut ordered)?;
    }
    Ok(ordered)
}

fn first_directory(root: &Path, paths: &[&str]) -> Result<PathBuf> {
    let found = paths.iter().map(|path| root.join(path)).find(|path| path.is_dir());
    found.with_context(|| format!("{} is missing in the packages", paths[0]))
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Puts a module behind those it depends on. One that is built into the kernel has no file.
fn load(name: &str, files: &[PathBuf], ordered: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let file_name = format!("{name}.ko");
    if ordered.iter().any(|(there, _)| *there == file_name) {
        return Ok(());
    }
    let is_it = |path: &&PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
        file == file_name || file == format!("{file_name}.xz")
    };
    let Some(path) = files.iter().find(is_it) else { return Ok(()) };
    let module = if path.extension().is_some_and(|extension| extension == "xz") {
        command("xz", &["-dc"]).arg(path).output().context("xz is missing")?.stdout
    } else {
        fs::read(path)?
    };
    for dependency in depends(&module) {
        load(&dependency, files, ordered)?;
    }
    ordered.push((file_name, module));
    Ok(())
}

/// Returns what `modinfo` prints as `depends`: a string in a section of the module.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::depends;

    #[test]
    fn a_module_tells_what_it_depends_on() {
        assert_eq!(
            depends(b"ELF\0license=GPL\0depends=net-failover,virtio\0name=x\0"),
            ["net_failover", "virtio"]
        );
        assert!(depends(b"\0depends=\0name=x\0").is_empty() && depends(b"no").is_empty());
    }
}
