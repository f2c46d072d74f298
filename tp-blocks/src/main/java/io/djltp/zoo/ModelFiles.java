package io.djltp.zoo;

import java.io.IOException;
import java.nio.file.Path;

/** Where the files of a model of the zoo come from. */
public interface ModelFiles {

    /**
     * Returns which files these are: others have another version.
     *
     * @return the version, letters and digits
     * @throws IOException if they are not there
     */
    String getVersion() throws IOException;

    /**
     * Writes the files of a {@link ModelFolder}.
     *
     * @param folder an empty folder
     * @throws IOException if they cannot be read or written
     */
    void write(Path folder) throws IOException;
}
