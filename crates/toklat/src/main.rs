//! The binary. Everything is in the library, so that tests and fuzz targets reach it too.

fn main() -> std::process::ExitCode {
    toklat::cli::main()
}
