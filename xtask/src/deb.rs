//! Packages: the program describes itself (manual pages, completions), cargo-deb and
//! cargo-generate-rpm pack.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tool::{self, cargo, has_subcommand};

/// The files to pack, and the places where they go.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Pack the programs that were built for tests: nothing is built.
    dev: bool,
    /// The directory for the package; by default, the packaging program chooses it.
    out: Option<PathBuf>,
}

impl Options {
    /// Of a package for tests, in a directory.
    pub fn of_tests(out: PathBuf) -> Self {
        Self { dev: true, out: Some(out) }
    }

    /// Of the command line.
    pub fn read(args: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--dev" => options.dev = true,
                "--out" => {
                    let out = args.next().context("--out needs a directory")?;
                    options.out = Some(std::path::absolute(out)?);
                }
                other => bail!("`{other}` is not known; options: [--dev] [--out DIR]"),
            }
        }
        Ok(options)
    }

    /// The profile of what is packed, which names its directory. That of tests has another name
    /// here: cargo-deb refuses to pack `dev`.
    fn profile(&self) -> &'static str {
        if self.dev { "tested" } else { "release" }
    }

    /// Returns the directory with the programs to pack.
    fn built(&self) -> PathBuf {
        tool::target().join(self.profile())
    }
}

/// What is missing here to make a package of this kind and to look at it.
pub fn missing(kind: &str) -> Option<&'static str> {
    match kind {
        "deb" if !has_subcommand("", "deb") => Some("cargo-deb"),
        "deb" if !tool::installed("lintian") => Some("lintian"),
        "rpm" if !has_subcommand("", "generate-rpm") => Some("cargo-generate-rpm"),
        _ => None,
    }
}

/// A Debian package, which lintian looks at if it is there.
pub fn run(options: &Options) -> Result<()> {
    if !has_subcommand("", "deb") {
        bail!("cargo-deb is missing: cargo install cargo-deb --locked");
    }
    contents(options)?;
    let mut deb = cargo(&["deb", "--package", "toklat", "--no-build"]);
    deb.args(["--profile", options.profile()]);
    if let Some(out) = &options.out {
        deb.arg("--output").arg(out);
    }
    match options.dev {
        true => deb.args(["--strip", "--fast"]),
        // The debugging information is four fifths of the program: it gets a package of its own.
        false => deb.arg("--dbgsym"),
    };
    tool::run(&mut deb)?;
    if !tool::installed("lintian") {
        println!("skipped: lintian (apt-get install lintian)");
        return Ok(());
    }
    let out = options.out.clone().unwrap_or_else(|| tool::target().join("debian"));
    let package = newest(&out, "toklat_")?;
    let package = package.to_string_lossy();
    // The archive's own: whose bug it closes, and in which of its releases it is.
    let ours = "initial-upload-closes-no-bugs,bad-distribution-in-changes-file";
    tool::run(&mut tool::command(
        "lintian",
        &["--fail-on", "error,warning", "--suppress-tags", ours, &package],
    ))
}

/// An RPM package.
pub fn rpm(options: &Options) -> Result<()> {
    if !has_subcommand("", "generate-rpm") {
        bail!("cargo-generate-rpm is missing: cargo install cargo-generate-rpm --locked");
    }
    contents(options)?;
    // cargo-deb does that itself.
    let built = options.built();
    let (whole, stripped) = (built.join("toklat"), built.join("package/toklat"));
    tool::run(&mut tool::command(
        "strip",
        &["-o", &stripped.to_string_lossy(), &whole.to_string_lossy()],
    ))?;
    let mut rpm = cargo(&["generate-rpm", "--package", "crates/toklat"]);
    rpm.args(["--profile", options.profile()]);
    if options.dev {
        rpm.args(["--payload-compress", "none"]);
    }
    if let Some(out) = &options.out {
        rpm.arg("--output").arg(out);
    }
    tool::run(&mut rpm)
}

/// Builds the program, and has it write what packages hold of it.
fn contents(options: &Options) -> Result<()> {
    let built = options.built();
    match options.dev {
        true => stage(&built)?,
        false => {
            let packages = ["--package", "toklat", "--package", "toklat-preload"];
            tool::run(cargo(&["build", "--release"]).args(packages))?;
        }
    }
    let program = built.join("toklat");
    let package = built.join("package");
    // Pages of commands that no longer exist must not be packed.
    if package.exists() {
        fs::remove_dir_all(&package)
            .with_context(|| format!("Cannot empty {}", package.display()))?;
    }
    let man = package.join("man");
    let program = program.to_string_lossy();
    tool::run(&mut tool::command(&program, &["man", &man.to_string_lossy()]))?;
    fs::copy(tool::root().join("CHANGELOG.md"), man.join("CHANGELOG.md"))?;
    for page in fs::read_dir(&man)?.flatten() {
        // Without its time stamp, the same page gives the same file.
        tool::run(&mut tool::command("gzip", &["-9nq", &page.path().to_string_lossy()]))?;
    }
    changelog(&tool::root().join("target/debian.changelog"))?;
    for (shell, file) in [("bash", "toklat.bash"), ("zsh", "_toklat"), ("fish", "toklat.fish")] {
        completions(&program, shell, &package.join(file))?;
    }
    // Container runtimes call the same program by this name.
    std::os::unix::fs::symlink("../../bin/toklat", package.join("toklat-cni"))
        .context("Cannot link toklat-cni")
}

/// Copies the programs that were built for tests to where a build for packages would put them.
fn stage(built: &Path) -> Result<()> {
    fs::create_dir_all(built)?;
    for name in ["toklat", "libtoklat_preload.so"] {
        let (from, to) = (tool::target().join("debug").join(name), built.join(name));
        fs::copy(&from, to).with_context(|| format!("Cannot copy {}", from.display()))?;
    }
    Ok(())
}

/// Writes the changelog that Debian reads: the version, and where the changes are.
fn changelog(file: &Path) -> Result<()> {
    let output = tool::command("git", &["log", "-1", "--format=%cD"]).output();
    let date =
        output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let date = Some(date.trim())
        .filter(|date| !date.is_empty())
        .unwrap_or("Thu, 01 Jan 2026 00:00:00 +0000");
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "toklat ({version}-1) unstable; urgency=medium\n\n  \
         * Release {version}; changelog.gz has the changes.\n\n \
         -- The toklat maintainers <toklat@example.invalid>  {date}\n"
    );
    fs::write(file, text).with_context(|| format!("Cannot write {}", file.display()))
}

fn completions(program: &str, shell: &str, file: &Path) -> Result<()> {
    let output = tool::command(program, &["completions", shell]).output()?;
    if !output.status.success() {
        bail!("toklat completions {shell} failed: {}", output.status);
    }
    fs::write(file, output.stdout).with_context(|| format!("Cannot write {}", file.display()))
}

/// The file written last in `dir` whose name begins with `start`.
fn newest(dir: &Path, start: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?.flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(start) && name.ends_with(".deb")
    });
    let newest = named.max_by_key(|entry| entry.metadata().and_then(|m| m.modified()).ok());
    Ok(newest.with_context(|| format!("{start}*.deb is missing in {}", dir.display()))?.path())
}
