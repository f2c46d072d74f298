package io.djltp.examples.train;

import java.util.ArrayList;
import java.util.List;

/**
 * One line on how training goes, as long as the terminal is wide: what matters most is kept, and
 * the bar takes the room that is left.
 */
final class ProgressLine {

    private static final int LEAST_BAR = 8;
    private static final int LARGEST_BAR = 40;

    private final double done;
    private final String step;
    private final String loss;
    private final String speed;
    private final String accuracy;

    /**
     * Creates a line.
     *
     * @param done the part of the run that is over, from 0 to 1
     * @param step which step
     * @param loss the loss
     * @param speed the words in a second
     * @param accuracy the accuracy on held-out words, or an empty text
     */
    ProgressLine(double done, String step, String loss, String speed, String accuracy) {
        this.done = Math.max(0, Math.min(1, done));
        this.step = step;
        this.loss = loss;
        this.speed = speed;
        this.accuracy = accuracy;
    }

    /** Returns the line for a terminal of so many columns. */
    String render(int columns) {
        String percent = String.format("train %3.0f%%", 100 * done);
        List<String> shown = new ArrayList<>();
        for (String piece : List.of(loss, speed, accuracy, step)) { // the dearest first
            shown.add(piece);
            if (piece.isEmpty() || percent.length() + 1 + text(shown).length() > columns) {
                shown.remove(shown.size() - 1);
            }
        }
        String text = text(shown);
        int bar = Math.min(LARGEST_BAR, columns - percent.length() - text.length() - 4);
        String line = percent + (bar < LEAST_BAR ? " " : " " + bar(bar) + " ") + text;
        return line.substring(0, Math.min(line.length(), Math.max(0, columns)));
    }

    /** Returns what is shown where there is no terminal. */
    @Override
    public String toString() {
        return render(Integer.MAX_VALUE).replaceAll("\\[.*\\] ", "");
    }

    private String text(List<String> pieces) {
        List<String> ordered = new ArrayList<>();
        for (String piece : List.of(step, loss, speed, accuracy)) {
            if (pieces.contains(piece)) {
                ordered.add(piece);
            }
        }
        return String.join(", ", ordered);
    }

    private String bar(int length) {
        int full = (int) (length * done);
        return "[" + "=".repeat(full) + " ".repeat(length - full) + "]";
    }
}
