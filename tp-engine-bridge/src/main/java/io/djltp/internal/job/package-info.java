/** Contains what processes compare of their settings. */
package io.djltp.internal.job;
