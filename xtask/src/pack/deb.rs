//! `cargo xtask deb`: a Debian package, and one with its debugging information, by `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::files::{Item, Kind, Place, items, lay_out};
use super::{Options, VERSION, last_commit, make, need, scripts};
use crate::tool;

/// The directory of `packaging`, and its scripts.
const PACKAGING: &str = "packaging/debian";
const SCRIPTS: [&str; 4] = ["preinst", "postinst", "prerm", "postrm"];

/// Packs, and has lintian look at the package if it is there.
pub fn run(options: &Options) -> Result<()> {
    need("deb")?;
    let workshop = options.workshop("deb")?;
    let items = items(Place::Deb, &options.sources(&workshop)?)?;
    let root = workshop.join("root");
    lay_out(&items, &root)?;
    let builder = Builder {
        architecture: tool::output(&mut tool::command("dpkg", &["--print-architecture"]))?,
        out: options.out("debian")?,
        is_quick: options.dev,
        workshop,
    };
    let programs: Vec<PathBuf> =
        items.iter().filter(|item| item.is_built).map(|item| root.join(&item.to)).collect();
    // The debugging information is four fifths of the program: it gets a package of its own.
    if !options.dev {
        builder.debug(&programs)?;
    }
    for program in &programs {
        strip(program)?;
    }
    lint(&builder.package(&items, &root, &programs)?)
}

/// Takes from a program or library what does not matter when it runs, as dh_strip does.
pub fn strip(program: &Path) -> Result<()> {
    let mut strip = tool::command("strip", &["--remove-section=.comment"]);
    // Of a library, programs need the names of what it exports.
    let is_library = program.extension().is_some_and(|end| end == "so");
    strip.args(is_library.then_some("--strip-unneeded")).arg(program);
    tool::run(&mut strip)
}

fn lint(package: &Path) -> Result<()> {
    if !tool::installed("lintian") {
        println!("skipped: lintian (apt-get install lintian)");
        return Ok(());
    }
    // The archive's own: whose bug it closes, and in which of its releases it is.
    let ours = "initial-upload-closes-no-bugs,bad-distribution-in-changes-file";
    let fail = ["--fail-on", "error,warning", "--suppress-tags", ours];
    tool::run(tool::command("lintian", &fail).arg(package))
}

/// What all packages of this run have in common.
struct Builder {
    architecture: String,
    workshop: PathBuf,
    out: PathBuf,
    /// Packing quickly matters more than a small package.
    is_quick: bool,
}

impl Builder {
    /// The package of what lies below `root`.
    fn package(&self, items: &[Item], root: &Path, programs: &[PathBuf]) -> Result<PathBuf> {
        let control = root.join("DEBIAN");
        make(&control)?;
        let configs = items.iter().filter(|item| item.kind == Kind::Config);
        let configs: String = configs.map(|item| format!("/{}\n", item.to.display())).collect();
        fs::write(control.join("conffiles"), configs)?;
        for name in SCRIPTS {
            let script = fs::read_to_string(tool::root().join(PACKAGING).join(name))?;
            let to = control.join(name);
            fs::write(&to, scripts::fill(name, &script, items))?;
            fs::set_permissions(&to, PermissionsExt::from_mode(0o755))?;
        }
        let libraries = self.libraries(programs)?;
        self.build("toklat", root, &[("@LIBRARIES@", libraries)])
    }

    /// The package of the programs' debugging information, which debuggers find by the id of a
    /// build.
    fn debug(&self, programs: &[PathBuf]) -> Result<()> {
        let root = self.workshop.join("debug");
        let mut ids = Vec::new();
        for program in programs {
            let id = build_id(program)?;
            let (start, rest) = id.split_at(2);
            let directory = root.join("usr/lib/debug/.build-id").join(start);
            make(&directory)?;
            let to = directory.join(format!("{rest}.debug"));
            let mut copy = tool::command("objcopy", &["--only-keep-debug"]);
            tool::run(copy.arg("--compress-debug-sections").args([program, &to]))?;
            fs::set_permissions(&to, PermissionsExt::from_mode(0o644))?;
            ids.push(id);
        }
        make(&root.join("DEBIAN"))?;
        self.build("toklat-dbgsym", &root, &[("@BUILD_IDS@", ids.join(" "))])?;
        Ok(())
    }

    /// Writes what is the same in all packages, and packs.
    fn build(&self, name: &str, root: &Path, fields: &[(&str, String)]) -> Result<PathBuf> {
        let control = root.join("DEBIAN");
        let template = match name.strip_prefix("toklat-") {
            None => "control".to_owned(),
            Some(part) => format!("control.{part}"),
        };
        let mut text = fs::read_to_string(tool::root().join(PACKAGING).join(template))?;
        let (files, size) = measure(root)?;
        let version = format!("{VERSION}-1");
        let same = [
            ("@VERSION@", version.clone()),
            ("@ARCHITECTURE@", self.architecture.clone()),
            ("@SIZE@", size.to_string()),
        ];
        for (field, value) in same.iter().chain(fields) {
            text = text.replace(field, value);
        }
        fs::write(control.join("control"), text)?;
        let mut sums = tool::command("md5sum", &["--"]);
        let sums = tool::output(sums.args(&files).current_dir(root))?;
        fs::write(control.join("md5sums"), sums + "\n")?;
        let package = self.out.join(format!("{name}_{version}_{}.deb", self.architecture));
        let compression: &[&str] = if self.is_quick { &["-Zgzip", "-z1"] } else { &["-Zxz"] };
        let mut build = tool::command("dpkg-deb", &["--root-owner-group"]);
        if let Some(time) = last_commit("%ct") {
            // Files get this time, so that one commit gives one package.
            build.env("SOURCE_DATE_EPOCH", time);
        }
        tool::run(build.args(compression).arg("--build").args([root, &package]))?;
        Ok(package)
    }

    /// The packages of the libraries that the programs are linked with.
    fn libraries(&self, programs: &[PathBuf]) -> Result<String> {
        let directory = self.workshop.join("shlibdeps");
        make(&directory.join("debian"))?;
        fs::write(
            directory.join("debian/control"),
            "Source: toklat\n\nPackage: toklat\nArchitecture: any\n",
        )?;
        let mut shlibdeps = tool::command("dpkg-shlibdeps", &["-O"]);
        let said = tool::output(shlibdeps.args(programs).current_dir(&directory))?;
        let named = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
        Ok(named.with_context(|| format!("dpkg-shlibdeps says {said:?}"))?.to_owned())
    }
}

/// The id of a program's build, which the linker wrote into it.
fn build_id(program: &Path) -> Result<String> {
    let notes = tool::output(tool::command("readelf", &["--notes"]).arg(program))?;
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    let id = id.map(str::trim).filter(|id| id.len() > 2);
    Ok(id.with_context(|| format!("{} has no build id", program.display()))?.to_owned())
}

/// The files below `root`, without those of the package's control, and their size in KiB as Debian
/// counts it: each rounded up, and 1 for all else.
fn measure(root: &Path) -> Result<(Vec<PathBuf>, u64)> {
    let (mut files, mut size) = (Vec::new(), 0);
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if path == root.join("DEBIAN") {
                continue;
            }
            match kind.is_file() {
                true => size += entry.metadata()?.len().div_ceil(1024),
                false => size += 1,
            }
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                files.push(path.strip_prefix(root)?.to_owned());
            }
        }
    }
    files.sort();
    Ok((files, size))
}
