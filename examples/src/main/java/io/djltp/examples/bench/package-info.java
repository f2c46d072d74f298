/**
 * Contains {@code tp bench}: how fast and how large a training step is, beside that of stock DJL
 * and beside what the machine could do at best.
 */
@NullMarked
package io.djltp.examples.bench;

import org.jspecify.annotations.NullMarked;
