package io.djltp.internal.files;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

/** Files are replaced by whole ones, or stay; nothing is left at the side. */
public class SideFolderTest extends TestFolder {

    @Test
    public void filesTakeTheirPlaceTogether() throws IOException {
        Files.writeString(folder.resolve("a"), "old");
        try (SideFolder side = SideFolder.in(folder)) {
            Files.writeString(side.resolve("b"), "new b");
            Files.writeString(side.resolve("a"), "new a");
            Assert.assertEquals(Files.readString(folder.resolve("a")), "old");
            Assert.assertEquals(side.replace(), List.of("a", "b"));
        }
        Assert.assertEquals(Files.readString(folder.resolve("a")), "new a");
        Assert.assertEquals(names(), List.of("a", "b"));
    }

    @Test
    public void whatSaysThatTheRestIsThereComesLast() throws IOException {
        try (SideFolder side = SideFolder.in(folder)) {
            for (String name : List.of("a", "b", "c")) {
                Files.createFile(side.resolve(name));
            }
            Assert.assertEquals(side.replace("a"), List.of("b", "c", "a"));
        }
    }

    @Test
    public void afterAFailureTheOldFileIsThereAndNothingElse() throws IOException {
        Files.writeString(folder.resolve("a"), "old");
        Assert.assertThrows(
                IOException.class,
                () -> {
                    try (SideFolder side = SideFolder.in(folder)) {
                        Files.writeString(side.resolve("a"), "half of");
                        throw new IOException("the disk is full");
                    }
                });
        Assert.assertEquals(Files.readString(folder.resolve("a")), "old");
        Assert.assertEquals(names(), List.of("a"));
    }

    @Test
    public void aFolderIsMovedAsAWholeAndNeverOverAnother() throws IOException {
        for (String text : List.of("first", "second")) {
            try (SideFolder side = SideFolder.in(folder)) {
                Path model = Files.createDirectory(side.resolve("model"));
                Files.writeString(model.resolve("weights"), text);
                if (text.equals("first")) {
                    side.replace();
                } else {
                    Assert.assertThrows(IOException.class, side::replace);
                }
            }
        }
        Assert.assertEquals(Files.readString(folder.resolve("model/weights")), "first");
        Assert.assertEquals(names(), List.of("model"));
    }

    @Test
    public void aFolderThatIsNotThereIsNotMade() throws IOException {
        Assert.assertThrows(IOException.class, () -> SideFolder.in(folder.resolve("none")));
        Assert.assertEquals(names(), List.of());
    }

    private List<String> names() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }
}
