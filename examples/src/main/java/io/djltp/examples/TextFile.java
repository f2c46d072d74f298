package io.djltp.examples;

import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A text that an option names. */
public final class TextFile {

    private static final String BYTE_ORDER_MARK = "\uFEFF";

    private TextFile() {}

    /**
     * Reads a text in UTF-8, without the mark that some programs begin it with.
     *
     * @param option the option that names the file
     * @param file the file
     * @return the text
     * @throws BadInputException if it is none
     */
    public static String read(String option, Path file) {
        try {
            String text = Files.readString(file);
            return text.startsWith(BYTE_ORDER_MARK) ? text.substring(1) : text;
        } catch (CharacterCodingException e) {
            throw new BadInputException(option + " " + file + " is no text in UTF-8", e);
        } catch (IOException e) {
            String why = Files.isDirectory(file) ? "is a folder" : "cannot be read";
            throw new BadInputException(
                    option + " " + file + " " + why + ": name a file with a text", e);
        }
    }
}
