/** Contains tests, and what they share. */
package io.djltp.internal.region;
