//! The terminal while it shows a screen of its own. The only user of ratatui's terminal.

use anyhow::Context as _;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{self, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{cursor, execute};
use ratatui::{Frame, Terminal};
use std::io::{self, IsTerminal, Stdout};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// The longest time between a key and its effect.
const GLANCE: Duration = Duration::from_millis(50);

/// A key of the user, or another event of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypedKey {
    /// Leave what is shown.
    Quit,
    /// Leave the screen (Ctrl-C).
    Interrupt,
    /// Show where the ranks are.
    Stacks,
    /// So many rows up (negative) or down.
    Rows(i32),
    /// So many pages.
    Pages(i32),
    /// The terminal has another size.
    Resized,
    /// Another key.
    Other,
}

impl TypedKey {
    /// Returns the first row that is shown after this key; a page has so many rows.
    pub fn scroll(self, first: usize, page: usize) -> usize {
        let rows = match self {
            TypedKey::Rows(rows) => i64::from(rows),
            TypedKey::Pages(pages) => i64::from(pages) * page as i64,
            TypedKey::Quit | TypedKey::Interrupt | TypedKey::Stacks | TypedKey::Resized | TypedKey::Other => 0,
        };
        usize::try_from(first as i64 + rows).unwrap_or(0)
    }
}

/// A terminal with a screen of its own, until it is dropped.
pub struct Screen {
    /// It is not dropped: ratatui would print that it cannot show the cursor of a terminal that is gone, and panic,
    /// because that cannot be printed either.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    /// The keys that the user has typed.
    pub keys: UnboundedReceiver<TypedKey>,
    is_over: Arc<AtomicBool>,
}

impl Screen {
    /// Returns whether there is a terminal for one.
    pub fn is_possible() -> bool {
        io::stdout().is_terminal() && io::stdin().is_terminal()
    }

    /// Opens it.
    ///
    /// # Errors
    /// If the terminal does not take it.
    pub fn open() -> anyhow::Result<Screen> {
        // a panic prints its message after the screen has gone
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        terminal::enable_raw_mode().context("cannot set up the terminal")?;
        let opened = execute!(io::stdout(), EnterAlternateScreen, cursor::Hide);
        let terminal = opened.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let terminal = terminal.inspect_err(|_| restore()).context("cannot set up the terminal")?;
        let (sender, keys) = mpsc::unbounded_channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match event::poll(GLANCE) {
                    Ok(true) => {
                        let key = event::read().ok().and_then(|event| key(&event));
                        if key.is_some_and(|key| sender.send(key).is_err()) {
                            return;
                        }
                    }
                    Ok(false) => {}
                    // the terminal is gone
                    Err(_) => {
                        let _ = sender.send(TypedKey::Interrupt);
                        return;
                    }
                }
            }
        });
        Ok(Screen { terminal: ManuallyDrop::new(terminal), keys, is_over })
    }

    /// Draws it.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.terminal.draw(draw).context("cannot write to the terminal")?;
        Ok(())
    }

    /// Returns its height in rows.
    pub fn height(&self) -> u16 {
        self.terminal.size().map_or(24, |size| size.height)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        restore();
        // a thread that panics cannot
        if !std::thread::panicking() {
            let _ = std::panic::take_hook();
        }
    }
}

fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = terminal::disable_raw_mode();
}

/// Returns what an event of the terminal means.
fn key(event: &Event) -> Option<TypedKey> {
    let KeyEvent { code, modifiers, kind, .. } = match event {
        Event::Resize(..) => return Some(TypedKey::Resized),
        Event::Key(key) => key,
        _ => return None,
    };
    if *kind == KeyEventKind::Release {
        return None;
    }
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(TypedKey::Interrupt),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(TypedKey::Quit),
        KeyCode::Up | KeyCode::Char('k') => Some(TypedKey::Rows(-1)),
        KeyCode::Down | KeyCode::Char('j') => Some(TypedKey::Rows(1)),
        KeyCode::PageUp => Some(TypedKey::Pages(-1)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(TypedKey::Pages(1)),
        KeyCode::Home => Some(TypedKey::Pages(i32::MIN / 1000)),
        KeyCode::End => Some(TypedKey::Pages(i32::MAX / 1000)),
        KeyCode::Char('s' | 'S') => Some(TypedKey::Stacks),
        // Shift alone is none, nor is what a terminal reports about itself
        KeyCode::Char(_) | KeyCode::Enter | KeyCode::Backspace | KeyCode::Tab | KeyCode::Left | KeyCode::Right => {
            Some(TypedKey::Other)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_the_same_everywhere() {
        let typed = |code, modifiers| key(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = |code| typed(code, KeyModifiers::NONE);
        assert_eq!(typed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(TypedKey::Interrupt));
        assert_eq!([KeyCode::Char('q'), KeyCode::Esc].map(plain), [Some(TypedKey::Quit); 2]);
        assert_eq!([KeyCode::Char('s'), KeyCode::Char('S')].map(plain), [Some(TypedKey::Stacks); 2]);
        assert_eq!([KeyCode::Char('x'), KeyCode::Enter].map(plain), [Some(TypedKey::Other); 2]);
        assert_eq!([KeyCode::Down, KeyCode::PageUp].map(plain), [Some(TypedKey::Rows(1)), Some(TypedKey::Pages(-1))]);
        assert_eq!((TypedKey::Other.scroll(7, 10), TypedKey::Pages(-1).scroll(7, 10)), (7, 0));
    }
}
