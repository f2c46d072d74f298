/**
 * Contains {@code tp bench}: how fast and how large a training step is, beside that of stock DJL
 * and beside what the machine could do at best.
 */
package io.djltp.examples.bench;
