startTheme();
showSummary();
showCurves();
showMask();
showMismatch();
showStudies();
showViewer();
showMore();
document.getElementById("footer").textContent = `Made ${DATA.made} by augur report.`;
