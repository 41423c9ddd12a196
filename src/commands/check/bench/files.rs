//! The files that `bench` reads and writes on the operator's machine. What is wrong with them is found before anything
//! is measured.

use crate::bench::report::{BenchFormat, BenchReport};
use crate::bench::verdict::baseline::Baseline;
use crate::cli;
use crate::error::Error;
use crate::init::draft_file;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// More is no output of a benchmark: that of 64 nodes has some 3 MB.
const LARGEST: u64 = 64 << 20;

/// The files of a benchmark.
#[derive(Default)]
pub(super) struct BenchFiles<'a> {
    /// The earlier benchmark with which it is compared.
    pub(super) baseline: Option<Baseline>,
    /// The file to which the plot is written.
    pub(super) plot: Option<&'a Path>,
}

impl BenchFiles<'_> {
    /// Reads the baseline, and checks that it is of these nodes and that the plot can be written.
    ///
    /// # Errors
    /// A wrong file, as wrong usage.
    pub(super) fn open<'a>(options: &'a cli::Bench, nodes: &[String]) -> Result<BenchFiles<'a>, Error> {
        let plot = options.plot.as_deref();
        plot.map_or(Ok(()), check_writable)?;
        let baseline = options.baseline.as_deref().map(|file| read_baseline(file, nodes)).transpose()?;
        Ok(BenchFiles { baseline, plot })
    }

    /// Writes the plot, whole or not at all.
    ///
    /// # Errors
    /// Naming the file.
    pub(super) fn write_plot(&self, format: &dyn BenchFormat, report: &BenchReport<'_>) -> Result<(), Error> {
        let Some(file) = self.plot else { return Ok(()) };
        draft_file::write(file, &format.format(report)?.to_string(), true)
    }
}

fn check_writable(file: &Path) -> Result<(), Error> {
    let shown = file.display();
    if file.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("svg")) {
        return Err(Error::usage(
            format!("the plot is an SVG, and {shown} does not end with .svg"),
            "--plot bench.svg",
        ));
    }
    if file.is_dir() {
        return Err(Error::usage(format!("cannot write the plot: {shown} is a directory"), "--plot bench.svg"));
    }
    let place = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let directory = match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    if !directory.is_dir() {
        let directory = directory.display();
        let why = format!("cannot write the plot {shown}: the directory {directory} does not exist");
        return Err(Error::usage(why, format!("mkdir -p {directory}")));
    }
    // it has no name, and is gone when it is closed
    let probed = tempfile::tempfile_in(&directory);
    probed.map(drop).map_err(|error| {
        Error::usage(
            format!("cannot write the plot {shown}: {error}"),
            "name a file in a directory that you may write to",
        )
    })
}

fn read_baseline(file: &Path, nodes: &[String]) -> Result<Baseline, Error> {
    let hint = "hvdctl bench --json >baseline.json";
    let shown = file.display();
    let cannot_read = |why: String| Error::usage(format!("cannot read the baseline {shown}: {why}"), hint);
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|opened| opened.take(LARGEST + 1).read_to_end(&mut bytes));
    read.map_err(|error| cannot_read(error.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(cannot_read("it is larger than 64 MiB".to_owned()));
    }
    let wrong = |why: String| Error::usage(format!("the baseline {shown} {why}"), hint);
    let baseline = Baseline::parse(&String::from_utf8_lossy(&bytes)).map_err(wrong)?;
    baseline.check_nodes(nodes).map_err(wrong)?;
    Ok(baseline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measurements::Measurements;
    use crate::bench::report::compared::Compared;
    use crate::bench::verdict::NetworkVerdict;
    use crate::text::result::ResultText;
    use anyhow::Context as _;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_plot_that_cannot_be_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("d.svg")).unwrap();
        fs::write(at("there.svg"), "old").unwrap();
        symlink("none/x.svg", at("broken.svg")).unwrap();
        let refused = |name: &str| {
            let error = check_writable(&at(name)).unwrap_err();
            assert_eq!(error.exit_code(false), 2, "{name}");
            error.to_string()
        };
        assert!(refused("none/x.svg").contains("/none does not exist"));
        assert!(refused("d.svg").contains("is a directory"));
        assert!(refused("x.png").contains("does not end with .svg"));
        assert!(refused("there.svg/x.svg").contains("there.svg does not exist"));
        for good in ["x.svg", "X.SVG", "there.svg"] {
            check_writable(&at(good)).unwrap();
        }
        assert_eq!(fs::read_to_string(at("there.svg")).unwrap(), "old", "nothing is touched before the end");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        if !rustix::process::geteuid().is_root() {
            fs::set_permissions(dir.path(), Permissions::from_mode(0o500)).unwrap();
            assert!(refused("x.svg").contains("Permission denied"));
            fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        }
    }

    #[test]
    fn a_plot_replaces_another_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.svg");
        let (measured, verdict, compared) = (Measurements::default(), NetworkVerdict::default(), Compared::default());
        let report = BenchReport { measured: &measured, verdict: &verdict, ranks: None, compared: &compared };
        let files = BenchFiles { baseline: None, plot: Some(&file) };
        for text in ["one", "two"] {
            files.write_plot(&Given(Some(text)), &report).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert!(files.write_plot(&Given(None), &report).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        BenchFiles { baseline: None, plot: None }.write_plot(&Given(None), &report).unwrap();
    }

    /// This text, or an error.
    struct Given(Option<&'static str>);

    impl BenchFormat for Given {
        fn format(&self, _: &BenchReport<'_>) -> anyhow::Result<ResultText> {
            self.0.map(ResultText::from).context("no room")
        }
    }

    #[test]
    fn a_baseline_that_cannot_be_used_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = ["node1".to_owned(), "node2".to_owned()];
        let refused = |text: Option<&[u8]>, expected: &str| {
            let file = dir.path().join("b.json");
            if let Some(text) = text {
                fs::write(&file, text).unwrap();
            }
            let error = read_baseline(&file, &nodes).unwrap_err();
            assert!(error.to_string().contains(expected) && error.exit_code(false) == 2, "{error}");
        };
        refused(None, "No such file");
        refused(Some(b"\xff\xfe"), "is not the output of `hvdctl bench --json`");
        refused(Some(b"{\"format\":9}"), "in format 9");
        refused(Some(b"{\"nodes\":[{\"node\":\"a\"}],\"directions\":[]}"), "is from other nodes: a");
        assert!(read_baseline(dir.path(), &nodes).unwrap_err().to_string().contains("cannot read the baseline"));
    }
}
