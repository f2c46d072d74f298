package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.job.Facts;
import io.djltp.job.Job;

import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Lets the processes of a job compare their options before they train together: with other seeds or
 * batches they would train nonsense, and with other numbers of epochs wait for each other.
 */
final class OptionsAgreement {

    private OptionsAgreement() {}

    /**
     * Compares the options that all processes must have alike.
     *
     * @param values those of this process by name, in one order in all
     * @param job the job
     * @throws BadInputException on all processes, if two of them differ
     */
    static void check(Map<String, String> values, Job job) {
        byte[] mine = new Facts(values).write().getBytes(StandardCharsets.UTF_8);
        byte[][] all = job.exchange("options", mine);
        Facts first = decode(all[0]);
        for (int process = 1; process < all.length; process++) {
            String difference =
                    first.difference(decode(all[process]), "process 0", "process " + process);
            if (difference != null) {
                throw new BadInputException(
                        difference + ": start all processes with the same options");
            }
        }
    }

    private static Facts decode(byte[] values) {
        return Facts.read(new String(values, StandardCharsets.UTF_8));
    }
}
