package io.djltp.internal.libtorch;

import java.io.DataInputStream;
import java.io.IOException;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Stream;

/** Which classes the classes of a folder refer to, by their constant pools. */
final class ClassFiles {

    private final Map<String, Set<String>> references = new HashMap<>();
    private final Set<String> publicClasses = new TreeSet<>();

    ClassFiles(Path folder) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.filter(f -> f.toString().endsWith(".class")).toList()) {
                read(file);
            }
        }
    }

    private void read(Path file) throws IOException {
        try (DataInputStream in = new DataInputStream(Files.newInputStream(file))) {
            in.skipNBytes(8); // magic number and version
            int size = in.readUnsignedShort();
            String[] texts = new String[size];
            int[] classes = new int[size];
            for (int i = 1; i < size; i++) {
                int tag = in.readUnsignedByte();
                switch (tag) {
                    case 1 -> texts[i] = in.readUTF();
                    case 7 -> classes[i] = in.readUnsignedShort();
                    case 8, 16, 19, 20 -> in.skipNBytes(2);
                    case 15 -> in.skipNBytes(3);
                    case 5, 6 -> {
                        in.skipNBytes(8);
                        i++; // a long takes two places
                    }
                    default -> in.skipNBytes(4);
                }
            }
            int access = in.readUnsignedShort();
            String name = texts[classes[in.readUnsignedShort()]];
            Set<String> used = new HashSet<>();
            for (int place : classes) {
                if (place > 0) {
                    used.add(texts[place]);
                }
            }
            references.put(name, used);
            if (Modifier.isPublic(access) && !name.contains("$") && !name.endsWith("-info")) {
                publicClasses.add(name);
            }
        }
    }

    /** Returns the public classes of which code or a class behind them touches a package. */
    Set<String> publicClassesThatReach(String prefix) {
        Set<String> found = new TreeSet<>();
        for (String name : publicClasses) {
            if (reaches(name, prefix, new HashSet<>())) {
                found.add(name.replace('/', '.'));
            }
        }
        return found;
    }

    /** Other public classes are not looked into: each is looked at for itself. */
    private boolean reaches(String name, String prefix, Set<String> seen) {
        if (name.startsWith(prefix)) {
            return true;
        }
        if (!seen.add(name) || seen.size() > 1 && publicClasses.contains(name)) {
            return false;
        }
        return references.getOrDefault(name, Set.of()).stream()
                .anyMatch(used -> reaches(used, prefix, seen));
    }

    /** Returns the public classes whose own code refers to a class. */
    Set<String> publicClassesThatUse(String other) {
        Set<String> found = new TreeSet<>(publicClasses);
        found.removeIf(name -> !references.get(name).contains(other));
        return found;
    }
}
