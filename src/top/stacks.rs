//! A page that shows where the ranks of the job are. It is read while the screen goes on.

use super::draw::page;
use super::screen::TypedKey;
use crate::error::Error;
use crate::event::Events;
use crate::job::manage::JobList;
use crate::job::stack::{StackReport, StackRequest, stacks};
use crate::record::list::Job;
use crate::text::wrap::wrap;
use ratatui::Frame;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::timeout;

const KEYS: &str = "up, down: scroll   any other key: back";

/// The longest time for a reading. It includes that py-spy is fetched and sent.
const LIMIT: Duration = Duration::from_secs(150);

/// A text that is being read.
type PageReading<'a> = Pin<Box<dyn Future<Output = String> + 'a>>;

/// The page.
pub struct StackPage<'a> {
    reading: Option<PageReading<'a>>,
    text: String,
    first: usize,
}

/// The effect of a key on the page.
#[derive(Debug, PartialEq, Eq)]
pub enum PageKey {
    /// It goes on.
    Stays,
    /// The page is closed.
    Back,
    /// The whole screen is closed.
    Quit,
}

impl<'a> StackPage<'a> {
    /// Makes a page that shows what is read.
    pub fn new(reading: impl Future<Output = String> + 'a) -> StackPage<'a> {
        let text = "reading where the ranks are …\n".to_owned();
        StackPage { reading: Some(Box::pin(reading)), text, first: 0 }
    }

    /// Makes the page of a job. `only`: the ranks that are read, none for all; `over`: set if it has ended.
    pub fn of_job(
        list: &'a JobList<'a>,
        job: &'a Job,
        only: &'a BTreeSet<u32>,
        over: bool,
        events: &'a Events,
    ) -> StackPage<'a> {
        StackPage::new(async move {
            if over {
                return format!("the job has ended: hvdctl report {} shows where its ranks were\n", job.id);
            }
            let request = StackRequest { ranks: only.clone(), ..StackRequest::default() };
            text_of(timeout(LIMIT, stacks(list, job, &request, events)).await.ok(), job.ranks)
        })
    }

    /// Waits until the text is there. Does not return if there is nothing to wait for. It may be called again after it
    /// was cancelled.
    pub async fn read(&mut self) {
        match &mut self.reading {
            Some(reading) => self.text = reading.await,
            None => std::future::pending().await,
        }
        self.reading = None;
    }

    /// Handles a key; `height`: that of the screen.
    pub fn typed(&mut self, key: TypedKey, height: u16) -> PageKey {
        match key {
            TypedKey::Interrupt => PageKey::Quit,
            TypedKey::Rows(_) | TypedKey::Pages(_) | TypedKey::Resized => {
                self.first = key.scroll(self.first, usize::from(height) / 2);
                PageKey::Stays
            }
            TypedKey::Quit | TypedKey::Stacks | TypedKey::Other => PageKey::Back,
        }
    }

    /// Draws it.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let width = usize::from(frame.area().width).max(20);
        let text = self.text.lines().flat_map(|line| wrapped(line, width)).collect::<Vec<_>>().join("\n");
        self.first = page(frame, &text, self.first, KEYS);
    }
}

/// Wraps a line, each part with the indentation of the line.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let text = line.trim_start();
    let indent = &line[..line.len() - text.len()];
    match text.is_empty() {
        true => vec![String::new()],
        false => {
            wrap(text, width - indent.len().min(width / 2)).into_iter().map(|part| format!("{indent}{part}")).collect()
        }
    }
}

/// Formats what was read; `None`: nothing within the limit.
fn text_of(read: Option<Result<StackReport, Error>>, ranks: u32) -> String {
    match read {
        Some(Ok(report)) => {
            let failed: String =
                report.failed.iter().map(|error| format!("{}: {}\n", error.node, error.message)).collect();
            report.text(ranks, false) + if failed.is_empty() { "" } else { "\n" } + &failed
        }
        Some(Err(error)) => format!("{error}\n"),
        None => format!("no answer within {} s\n", LIMIT.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;
    use crate::model::stack::RankStack;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn shown(page: &mut StackPage<'_>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| page.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    #[tokio::test]
    async fn a_page_is_shown_while_it_is_read_and_scrolls() {
        let (sender, receiver) = tokio::sync::oneshot::channel::<String>();
        let mut page = StackPage::new(async { receiver.await.unwrap() });
        assert!(timeout(Duration::from_millis(10), page.read()).await.is_err(), "what is read has not come");
        assert_eq!(shown(&mut page, 60, 2), ["reading where the ranks are …", KEYS]);
        let lines: String = (1..=5).map(|number| format!("line {number}\n")).collect();
        sender.send(lines + "    indented words that are\n").unwrap();
        page.read().await;
        let last = |lines: &str| format!("{KEYS}   lines {lines}");
        assert_eq!(shown(&mut page, 80, 4), ["line 1", "line 2", "line 3", &last("1 to 3 of 6")]);
        assert_eq!(page.typed(TypedKey::Rows(1), 4), PageKey::Stays);
        assert_eq!(shown(&mut page, 80, 4), ["line 2", "line 3", "line 4", &last("2 to 4 of 6")]);
        assert_eq!(page.typed(TypedKey::Pages(9), 4), PageKey::Stays);
        let narrow = shown(&mut page, 20, 4);
        assert_eq!(narrow[..3], ["line 5", "    indented words", "    that are"]);
        assert!(timeout(Duration::from_millis(10), page.read()).await.is_err(), "once");
    }

    #[test]
    fn any_other_key_goes_back() {
        let mut page = StackPage::new(async { String::new() });
        for key in [TypedKey::Quit, TypedKey::Stacks, TypedKey::Other] {
            assert_eq!(page.typed(key, 24), PageKey::Back);
        }
        assert_eq!(page.typed(TypedKey::Interrupt, 24), PageKey::Quit);
    }

    #[test]
    fn what_could_not_be_read_is_said() {
        let rank = RankStack::read("node1", r#"{"rank": 0, "quiet": 0, "processes": [], "left_out": 0}"#).unwrap();
        let failed = vec![NodeError::failed("node2", "read the stacks", "no route")];
        let report = StackReport { job: "j1".into(), ranks: vec![rank], failed };
        let text = text_of(Some(Ok(report)), 2);
        assert!(text.contains("rank 0 on node1") && text.contains("\nnode2: ") && text.contains("no route"), "{text}");
        assert_eq!(text_of(Some(Err(Error::check("it failed", "a hint"))), 2).lines().next(), Some("it failed"));
        assert_eq!(text_of(None, 2), "no answer within 150 s\n");
    }
}
