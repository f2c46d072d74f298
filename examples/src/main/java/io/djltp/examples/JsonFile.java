package io.djltp.examples;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A file of JSON, for other programs to read. */
public final class JsonFile {

    private static final Gson GSON =
            new GsonBuilder().setPrettyPrinting().serializeSpecialFloatingPointValues().create();

    private JsonFile() {}

    /**
     * Checks that the file of an option can be written, before the work that is to be written to
     * it.
     *
     * @param option the option that names the file
     * @param file the file, or {@code null} if none is wanted
     */
    public static void check(String option, @Nullable Path file) {
        if (file != null && !isWritable(file)) {
            throw new BadInputException(
                    "%s %s cannot be written: name a file in an existing folder with write"
                            + " permission",
                    option, file);
        }
    }

    /**
     * What permissions say is not all: a file system may have no place for new files. All processes
     * of a job look at the same time, so that none may create what another one would find.
     */
    private static boolean isWritable(Path file) {
        if (Files.exists(file)) {
            return Files.isWritable(file) && !Files.isDirectory(file);
        }
        try {
            Path folder = file.toAbsolutePath().getParent();
            Files.delete(Files.createTempFile(folder, file.getFileName().toString(), ".check"));
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    /**
     * Writes an object.
     *
     * @param file the file, or {@code null} to do nothing
     * @param object the object
     * @throws IOException if the file cannot be written
     */
    public static void write(@Nullable Path file, Object object) throws IOException {
        if (file != null) {
            Files.writeString(file, GSON.toJson(object) + "\n");
        }
    }
}
