//! Tells the program which profile it was built with: the folder in which cargo builds, as in
//! `target/release/build/toklat-client-0123/out`. (`PROFILE` knows only `debug` and `release`.)

fn main() {
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let profile =
        std::path::Path::new(&out).ancestors().nth(3).and_then(|folder| folder.file_name());
    let profile = profile.and_then(|name| name.to_str()).unwrap_or("unknown");
    println!("cargo::rustc-env=TOKLAT_PROFILE={profile}");
    println!("cargo::rerun-if-changed=build.rs");
}
