package io.djltp.examples.docs;

import ai.djl.util.Utils;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Puts what this build has compiled into a local repository of Maven, as its install does. */
final class LocalInstall {

    private static final Pattern VERSION = Pattern.compile("<version>(.*?)</version>");

    private final Path root;
    private final Path repository;

    /**
     * @param root the root of the project
     * @param repository the local repository
     */
    LocalInstall(Path root, Path repository) {
        this.root = root;
        this.repository = repository;
    }

    /** Empties the repository, and lets all but the library stand where another one has it. */
    void linkOthers(Path other) throws IOException {
        Utils.deleteQuietly(repository);
        Path group = Files.createDirectories(repository.resolve("io"));
        for (Path folder : List.of(other, other.resolve("io"))) {
            try (Stream<Path> entries = Files.list(folder)) {
                for (Path entry : entries.toList()) {
                    Path link = repository.resolve(other.relativize(entry));
                    if (!link.equals(group) && !link.equals(group.resolve("djltp"))) {
                        Files.createSymbolicLink(link, entry);
                    }
                }
            }
        }
    }

    /** Puts the library there, and nothing else of the project. */
    void install() throws IOException {
        Path group = repository.resolve("io/djltp");
        Utils.deleteQuietly(group);
        Matcher matcher = VERSION.matcher(Files.readString(root.resolve("pom.xml")));
        if (!matcher.find()) {
            throw new IllegalStateException("no version");
        }
        String version = matcher.group(1);
        Map<String, String> folders = new TreeMap<>();
        folders.put("djl-tensor-parallel", "");
        folders.put("tp-bom", "tp-blocks/bom");
        folders.put("tp-engine-bridge", "tp-engine-bridge");
        folders.put("tp-blocks", "tp-blocks");
        for (Map.Entry<String, String> each : folders.entrySet()) {
            Path module = root.resolve(each.getValue());
            Path folder = Files.createDirectories(group.resolve(each.getKey()).resolve(version));
            String name = each.getKey() + "-" + version;
            Files.copy(module.resolve("pom.xml"), folder.resolve(name + ".pom"));
            Path classes = module.resolve("target/classes");
            if (Files.isDirectory(classes)) {
                jar(classes, folder.resolve(name + ".jar"));
            }
        }
    }

    private static void jar(Path classes, Path jar) throws IOException {
        try (Stream<Path> files = Files.walk(classes);
                OutputStream out = Files.newOutputStream(jar);
                JarOutputStream entries = new JarOutputStream(out)) {
            entries.setLevel(0);
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                String name = classes.relativize(file).toString().replace('\\', '/');
                entries.putNextEntry(new JarEntry(name));
                Files.copy(file, entries);
            }
        }
    }
}
