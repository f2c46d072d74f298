package io.djltp.job;

import java.nio.charset.StandardCharsets;
import java.util.List;

/** What the processes tell each other when each says whether it is ready, and what that means. */
final class ReadinessCheck {

    private static final int MAX_ERROR = 16 * 1024;

    private ReadinessCheck() {}

    /**
     * Returns what a process sends.
     *
     * @param error why it is not ready, or {@code null} if it is
     * @return the message
     */
    static byte[] encode(String error) {
        // the first byte tells an empty error from none
        return error == null
                ? new byte[0]
                : ("!" + Texts.cut(error, MAX_ERROR)).getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Throws if a process is not ready.
     *
     * @param what what they are to be ready for
     * @param messages the messages of all processes
     * @param members the processes
     */
    static void throwIfAny(String what, byte[][] messages, List<JobMember> members) {
        StringBuilder text = new StringBuilder();
        int failed = -1;
        int count = 0;
        for (int i = 0; i < messages.length; i++) {
            if (messages[i].length > 0) {
                String error = new String(messages[i], StandardCharsets.UTF_8).substring(1);
                text.append(count++ == 0 ? "" : "; ").append(members.get(i)).append(": ");
                text.append(error);
                failed = i;
            }
        }
        if (count > 0) {
            String message = what + " failed on " + Texts.cut(text.toString(), 2 * MAX_ERROR);
            throw new JobFailedException(message, count == 1 ? failed : -1, -1, null);
        }
    }
}
