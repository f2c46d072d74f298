package io.djltp.checkpoint.store;

import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.util.Locale;
import java.util.OptionalLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The names of folders and files of checkpoints. */
final class StepNames {

    /** The index of a checkpoint, and its checksum. */
    static final String INDEX = "index.json";

    static final String INDEX_SUM = INDEX + ".sha256";

    static final String LOCK = ".lock";

    private static final String WRITING = ".writing-";
    private static final String REMOVING = ".removing-";
    private static final Pattern STEP = Pattern.compile("step-(\\d{8,18})");

    private StepNames() {}

    /** Returns the folder of a complete checkpoint. */
    static String complete(long step) {
        return String.format(Locale.ROOT, "step-%08d", step);
    }

    /** Returns the step of a folder's name, if it is that of a complete checkpoint. */
    static OptionalLong step(String name) {
        Matcher matcher = STEP.matcher(name);
        if (!matcher.matches()) {
            return OptionalLong.empty();
        }
        long step = Long.parseLong(matcher.group(1));
        return name.equals(complete(step)) ? OptionalLong.of(step) : OptionalLong.empty();
    }

    /**
     * Returns whether a checkpoint's folder is there: another process may have removed it.
     *
     * @throws CheckpointException if it is no folder. A newest one is not passed over
     */
    static boolean isFolder(Path complete) throws CheckpointException {
        if (Files.isDirectory(complete)) {
            return true;
        }
        if (Files.exists(complete, LinkOption.NOFOLLOW_LINKS)) {
            throw new CheckpointException(
                    complete
                            + " has the name of a checkpoint and is no folder: copy the checkpoint"
                            + " back, or move it away to go on without it");
        }
        return false;
    }

    /** Returns the folder of a checkpoint that is being written. */
    static String writing(long step, String run, int attempt) {
        return WRITING + complete(step) + "-" + run + "-" + attempt;
    }

    /** Returns the folder of a checkpoint that is being removed. */
    static String removing(long step, String run) {
        return REMOVING + complete(step) + "-" + run;
    }

    /** Returns the folder of a checkpoint that a run was not to go on from. */
    static String aside(long step, String run) {
        return complete(step) + ".aside-" + run;
    }

    /** Returns whether a folder is half written or half removed. */
    static boolean isLeftOver(String name) {
        return name.startsWith(WRITING) || name.startsWith(REMOVING);
    }

    /** Returns the file of a part. */
    static String part(int part, int parts) {
        return "part-" + part + "-of-" + parts + ".safetensors";
    }

    /** Returns what a process says of a part that it has written. */
    static String written(int part, int parts) {
        return "part-" + part + "-of-" + parts + ".written";
    }

    /** Returns what a process says when it cannot write a part. */
    static String failed(int part, int parts) {
        return "part-" + part + "-of-" + parts + ".failed";
    }
}
