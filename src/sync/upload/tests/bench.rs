//! The scripts of an upload, run in directories of this machine.

use super::*;

/// A project here and a node's directory of projects.
pub(super) struct Bench {
    pub(super) dir: tempfile::TempDir,
    /// The user and the group of the login that hvdctl uses.
    pub(super) login: Option<String>,
}

impl Bench {
    pub(super) fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("here")).unwrap();
        Bench { dir, login: None }
    }

    pub(super) fn here(&self, name: &str) -> PathBuf {
        self.dir.path().join("here").join(name)
    }

    pub(super) fn there(&self, name: &str) -> PathBuf {
        self.dir.path().join("there/p").join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.here(name).parent().unwrap()).unwrap();
        fs::write(self.here(name), text).unwrap();
    }

    pub(super) fn tree(&self) -> ProjectFiles {
        ProjectFiles::read(&self.dir.path().join("here")).unwrap()
    }

    pub(super) fn script(&self, script: &str, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.start(script, args);
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        let _ = feeder.join();
        output
    }

    pub(super) fn start(&self, script: &str, args: &[&str]) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(self.dir.path().join("there")).args(["p", "lab"]).args(args);
        let tools = self.dir.path().join("tools");
        command.envs(self.login.iter().map(|login| ("HVDCTL_LOGIN", login)));
        command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Makes a tool fail with this message where this pattern of the shell matches its arguments, until it is repaired.
    pub(super) fn break_tool(&self, tool: &str, arguments: &str, message: &str) {
        let tools = self.dir.path().join("tools");
        fs::create_dir_all(&tools).unwrap();
        let real = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(tool)).into_iter().find(|path| path.exists());
        let real = real.unwrap().display().to_string();
        let stub = format!(
            "#!/bin/sh\ncase \"$*\" in {arguments}) echo \"{tool}: {message}\" >&2; exit 1 ;; esac\nexec {real} \
             \"$@\"\n"
        );
        fs::write(tools.join(tool), stub).unwrap();
        fs::set_permissions(tools.join(tool), Permissions::from_mode(0o755)).unwrap();
    }

    pub(super) fn repair(&self) {
        fs::remove_dir_all(self.dir.path().join("tools")).unwrap();
    }

    /// Runs a comparison that fails, and returns its standard error.
    #[track_caller]
    pub(super) fn failed_comparison(&self, origin: &str) -> String {
        let output = self.script(COMPARE, &[&self.tree().hash, origin, "", "", ""], b"");
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(super) fn compare(&self, tree: &ProjectFiles) -> ProjectComparison {
        self.compare_as(tree, ("desk:/p", "", "")).unwrap()
    }

    /// Compares with what the node has, beside these running jobs.
    pub(super) fn compare_as(
        &self,
        tree: &ProjectFiles,
        (origin, shared, jobs): (&str, &str, &str),
    ) -> Result<ProjectComparison, ProjectRefusal> {
        let output = self.script(COMPARE, &[&tree.hash, origin, &earlier_origin(origin), shared, jobs], b"");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("kept "), "{output:?}");
        ProjectComparison::parse(&output.stdout)
    }

    /// Returns the entries that the node lacks after this comparison.
    pub(super) fn missing(&self, tree: &ProjectFiles, comparison: &ProjectComparison) -> Selection {
        if comparison.has.is_none() {
            return tree.manifest.all();
        }
        let listed = self.script(MANIFEST, &[HAS], b"");
        assert!(listed.status.success() && listed.stderr.is_empty(), "{listed:?}");
        assert_eq!(comparison.has, Some(crate::text::digest::in_hex(&listed.stdout)));
        let mut comparer = Comparer::new(&tree.manifest);
        let records = listed.stdout.split_inclusive(|byte| *byte == 0);
        records.for_each(|record| comparer.take(&record[..record.len() - 1]).unwrap());
        let difference = comparer.difference();
        let mut pieces = tree.prepare(&Arc::new(difference.clone()), Selection::none(tree.manifest.0.len()));
        let gone = std::iter::from_fn(|| pieces.blocking_recv()).flat_map(Result::unwrap).collect::<Vec<u8>>();
        if !gone.is_empty() {
            let done = self.script(PREPARE, &[], &gone);
            assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
        }
        difference.missing
    }

    /// The tar stream with the missing entries.
    pub(super) fn stream(tree: &ProjectFiles, missing: &Selection) -> Vec<u8> {
        let mut pieces = tree.stream(missing.clone());
        let mut stream = Vec::new();
        while let Some(piece) = pieces.blocking_recv() {
            stream.extend_from_slice(&piece.unwrap());
        }
        stream
    }

    pub(super) fn apply(&self, tree: &ProjectFiles, missing: &Selection, stream: &[u8]) -> Output {
        self.apply_for("", tree, missing, stream)
    }

    /// Applies a stream; for a job with a separate directory if its id is not empty.
    pub(super) fn apply_for(&self, id: &str, tree: &ProjectFiles, missing: &Selection, stream: &[u8]) -> Output {
        let (arrived, whole) = (tree.manifest.arrived(missing), tree.manifest.placed(!id.is_empty()));
        self.script(APPLY, &[&tree.hash, &arrived, &whole, id], stream)
    }

    /// Uploads, and returns the names that were sent.
    pub(super) fn upload(&self) -> Vec<String> {
        let tree = self.tree();
        let comparison = self.compare(&tree);
        if comparison.is_same {
            return Vec::new();
        }
        let missing = self.missing(&tree, &comparison);
        let stream = Self::stream(&tree, &missing);
        let done = self.apply(&tree, &missing, &stream);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let last = String::from_utf8_lossy(done.stdout.rsplit(|b| *b == 0).next().unwrap()).into_owned();
        assert_eq!(last, format!("{}  -\n", tree.hash));
        assert!(self.compare(&tree).is_same, "proven and unchanged");
        assert!(self.stages().is_empty(), "{:?}", self.stages());
        tree.manifest.select(&missing).map(|(name, _)| name.clone()).collect()
    }

    /// The paths of the staging directories.
    pub(super) fn stages(&self) -> Vec<PathBuf> {
        let state = fs::read_dir(self.dir.path().join("there/.p@lab")).unwrap().map(|entry| entry.unwrap());
        state
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("stage"))
            .map(|entry| entry.path())
            .collect()
    }

    /// The staging directory of an upload.
    pub(super) fn stage(&self, upload: &Child) -> PathBuf {
        self.dir.path().join(format!("there/.p@lab/stage.{}", upload.id()))
    }

    /// Waits until an upload has so many bytes in a file of its staging directory.
    #[track_caller]
    pub(super) fn until_staged(&self, upload: &Child, file: &str, bytes: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while fs::read(self.stage(upload).join(file)).map_or(0, |staged| staged.len()) < bytes {
            assert!(Instant::now() < end, "{file} does not come before the stream ends");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The project's directory on the node, as the project here is read.
    pub(super) fn arrived(&self) -> ProjectFiles {
        ProjectFiles::read(&self.there("")).unwrap()
    }

    #[track_caller]
    pub(super) fn same(&self) {
        assert_eq!(self.arrived().manifest, self.tree().manifest);
    }
}
