package io.djltp.rank;

import java.util.List;

/** Which rank was where: the first thing to know of a job that hung or fell apart. */
final class LastOperations {

    /** How many operations of each rank are written. */
    private static final int SHOWN = 12;

    private LastOperations() {}

    /** Returns a text of the last operations of ranks, beginning with a new line. */
    static String of(List<ParallelContext> contexts) {
        StringBuilder text = new StringBuilder();
        for (ParallelContext context : contexts) {
            List<String> entries = context.getWorld().getRecorder().entries();
            text.append(System.lineSeparator()).append("rank ").append(context.getRank());
            text.append(entries.isEmpty() ? " has not called anything yet" : ", the last calls:");
            int first = Math.max(0, entries.size() - SHOWN);
            for (String entry : entries.subList(first, entries.size())) {
                text.append(System.lineSeparator()).append("    ").append(entry);
            }
        }
        return text.toString();
    }
}
