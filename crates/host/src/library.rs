//! The library of `toklat run`: which file it is, and where it is looked for.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The file that `toklat run` has loaded into programs.
pub const LIBRARY: &str = "libtoklat_preload.so";
/// How a program without its library gets it.
pub const REMEDY: &str = "cargo xtask install";
/// The environment variable that names another place of the library.
const VARIABLE: &str = "TOKLAT_PRELOAD";
/// The library's places, relative to this program's directory. A checkout has it in `deps`, where
/// cargo builds it along with this program; a copy beside the program may be an older one.
const PLACES: [&str; 5] = ["deps", "", "../lib/toklat", "../lib", "../lib64/toklat"];

/// Finds the library: the file that `TOKLAT_PRELOAD` names, else the one that came with this
/// program.
///
/// # Errors
/// There is no library, or the environment variable names no file.
pub fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) {
        let found = path.is_file().then(|| path.clone());
        return found.with_context(|| {
            format!("{VARIABLE} is {}, and there is no such file; unset it", path.display())
        });
    }
    let program = env::current_exe().context("Cannot find out where this program is")?;
    beside(program.parent().unwrap_or_else(|| Path::new("/")))
}

/// The library of a program in `directory`.
fn beside(directory: &Path) -> Result<PathBuf> {
    let places = PLACES.map(|place| directory.join(place).join(LIBRARY));
    let found = places.iter().find(|path| path.is_file());
    let found = found.and_then(|path| path.canonicalize().ok());
    found.with_context(|| {
        let places: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        format!(
            "There is no {LIBRARY}; it was looked for at {}. Install it with the program: \
             `{REMEDY}`, take the package (apt install ./toklat_*.deb), or say where it is: \
             {VARIABLE}=/path/{LIBRARY}",
            places.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_checkouts_and_where_it_is_installed() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("bin");
        std::fs::create_dir(&directory).unwrap();
        let missing = beside(&directory).unwrap_err().to_string();
        assert!(missing.contains("`cargo xtask install`"), "{missing}");
        // Each is preferred to those that were there before.
        for place in ["lib/toklat", "bin", "bin/deps"] {
            let library = root.path().join(place).join(LIBRARY);
            std::fs::create_dir_all(library.parent().unwrap()).unwrap();
            std::fs::write(&library, "").unwrap();
            assert_eq!(beside(&directory).unwrap(), library.canonicalize().unwrap());
        }
    }
}
