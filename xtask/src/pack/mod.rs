//! `cargo xtask deb`, `rpm` and `install`: the program, the library of `toklat run`, and what the
//! program says of itself (manual pages, completions), each file where `packaging/files` puts it.

mod deb;
mod files;
mod install;
mod rpm;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::files::Sources;
use crate::tool::{self, cargo};

pub use self::deb::run as deb;
pub use self::install::run as install;
pub use self::rpm::run as rpm;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Packs or installs.
pub type Make = fn(&Options) -> Result<()>;

/// The program that is missing here to make a package of this kind, and to look at it.
pub fn missing(kind: &str) -> Option<&'static str> {
    let programs: &[&str] = match kind {
        "deb" => &["dpkg-deb", "dpkg-shlibdeps", "strip", "lintian"],
        "rpm" => &["rpmbuild", "strip"],
        _ => &[],
    };
    programs.iter().copied().find(|program| !tool::installed(program))
}

/// Fails if a package of this kind cannot be made here. Looking at it may be left out.
fn need(kind: &str) -> Result<()> {
    match missing(kind) {
        Some(program) if program != "lintian" => bail!("{program} is missing: cargo xtask setup"),
        _ => Ok(()),
    }
}

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Take the programs that were built for tests: nothing is built.
    dev: bool,
    /// The directory for the package, or the root of an installation.
    out: Option<PathBuf>,
}

impl Options {
    /// Of the command line, where `place` takes a directory.
    pub fn read(args: &[&str], place: &str) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--dev" => options.dev = true,
                arg if arg == place => {
                    let out = args.next().with_context(|| format!("{place} needs a directory"))?;
                    options.out = Some(std::path::absolute(out)?);
                }
                other => bail!("`{other}` is not known; options: [--dev] [{place} DIR]"),
            }
        }
        Ok(options)
    }

    /// Of a package for tests, in a directory.
    pub fn of_tests(out: PathBuf) -> Self {
        Self { dev: true, out: Some(out) }
    }

    /// An empty directory for what is made on the way. Each command has its own: two may run at a
    /// time.
    fn workshop(&self, command: &str) -> Result<PathBuf> {
        let profile = if self.dev { "dev" } else { "dist" };
        let directory = tool::target().join("package").join(format!("{command}-{profile}"));
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("Cannot empty {}", directory.display()))?;
        }
        make(&directory)?;
        Ok(directory)
    }

    /// The directory for the package.
    fn out(&self, usual: &str) -> Result<PathBuf> {
        let out = self.out.clone().unwrap_or_else(|| tool::target().join(usual));
        make(&out)?;
        Ok(out)
    }

    /// Builds the program and the library, and has the program write what packages hold of it.
    fn sources(&self, workshop: &Path) -> Result<Sources> {
        let built = if self.dev { tested() } else { build()? };
        for file in &built {
            if !file.is_file() {
                bail!("{} is missing: cargo build --features full", file.display());
            }
        }
        let made = workshop.join("made");
        describe(&built[0], &made)?;
        Ok(Sources { built, made })
    }
}

fn make(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("Cannot make {}", directory.display()))
}

/// The program and the library as they are built for tests.
fn tested() -> [PathBuf; 2] {
    let directory = tool::target().join("debug");
    [directory.join("toklat"), directory.join("deps/libtoklat_preload.so")]
}

/// Builds the program and the library, optimised as a whole. The library has a target directory of
/// its own: that of the program holds another build of it, which is made along and gets no
/// link-time optimisation, as its crate is a library of Rust, too. In one directory each build
/// would make the other one stale, and with it the program.
fn build() -> Result<[PathBuf; 2]> {
    let program = ["build", "--profile=dist", "--package=toklat", "--features=full"];
    tool::run(&mut cargo(&program))?;
    let target = tool::target().join("preload");
    let mut library = cargo(&["rustc", "--profile=dist", "--package=toklat-preload", "--lib"]);
    library.arg("--crate-type=cdylib").arg("--target-dir").arg(&target);
    tool::run(&mut library)?;
    let library = target.join("dist/libtoklat_preload.so");
    Ok([tool::target().join("dist/toklat"), library])
}

/// Has the program write its manual pages and completions to `made`, where changes lie, too.
fn describe(program: &Path, made: &Path) -> Result<()> {
    let man = made.join("man");
    make(&man)?;
    let program = program.to_string_lossy();
    tool::run(&mut tool::command(&program, &["man", &man.to_string_lossy()]))?;
    fs::copy(tool::root().join("CHANGELOG.md"), made.join("changelog"))?;
    changelog(&made.join("changelog.Debian"))?;
    let mut gzip = tool::command("gzip", &["--best", "--no-name", "--recursive"]);
    // Without its time stamp, the same page gives the same file.
    gzip.arg(&man).args(["changelog", "changelog.Debian"].map(|name| made.join(name)));
    tool::run(&mut gzip)?;
    for (shell, file) in [("bash", "toklat.bash"), ("zsh", "_toklat"), ("fish", "toklat.fish")] {
        completions(&program, shell, &made.join(file))?;
    }
    Ok(())
}

/// Writes the changelog that Debian reads: the version, and where the changes are.
fn changelog(file: &Path) -> Result<()> {
    let date = last_commit("%cD").unwrap_or_else(|| "Thu, 01 Jan 2026 00:00:00 +0000".into());
    let text = format!(
        "toklat ({VERSION}-1) unstable; urgency=medium\n\n  \
         * Release {VERSION}; changelog.gz has the changes.\n\n \
         -- The toklat maintainers <toklat@example.invalid>  {date}\n"
    );
    fs::write(file, text).with_context(|| format!("Cannot write {}", file.display()))
}

/// What git says of the last commit.
fn last_commit(format: &str) -> Option<String> {
    let said = tool::command("git", &["log", "-1", &format!("--format={format}")]).output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?.trim().to_owned();
    (!said.is_empty()).then_some(said)
}

fn completions(program: &str, shell: &str, file: &Path) -> Result<()> {
    let said = tool::output(&mut tool::command(program, &["completions", shell]))?;
    fs::write(file, said + "\n").with_context(|| format!("Cannot write {}", file.display()))
}
