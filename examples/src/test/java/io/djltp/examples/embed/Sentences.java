package io.djltp.examples.embed;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** A hundred sentences in more than 40 languages, from one character to 300 word pieces. */
final class Sentences {

    private Sentences() {}

    /** Reads them. */
    static List<String> read() throws IOException {
        try (InputStream file = Sentences.class.getResourceAsStream("/embed/sentences.txt")) {
            return new String(file.readAllBytes(), StandardCharsets.UTF_8).lines().toList();
        }
    }
}
